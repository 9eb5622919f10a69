// Turn objects into what the views show: pure, and without a diagnosis of its own. Causes are
// conditions of the provider in its own words. Which conditions count, and what a reason means, is
// in conditions.json, which `python -m tools.generate.headlamp` writes.

import known from './conditions.json';
import { Condition, HarvesterCluster, HarvesterMachine } from './objects';

const CLUSTER_NAME_LABEL = 'cluster.x-k8s.io/cluster-name';
const CONTROL_PLANE_LABEL = 'cluster.x-k8s.io/control-plane';
const CLUSTER_API_GROUP = 'cluster.x-k8s.io/';
const PARKING = ['Parking', 'Resuming', 'ParkBlocked'];
const EVACUATING = ['Evacuating', 'EvacuationBlocked'];
const REASONS: Record<string, string> = known.reasons;

export type Color = 'success' | 'warning' | 'error' | '';

export interface State {
  label: string;
  color: Color;
}

/** What the provider reports in a condition, and what its documentation says to do. */
export interface Cause {
  /** Name of the HarvesterMachine that reports it; empty for the HarvesterCluster. */
  machine: string;
  reason: string;
  message: string;
  remedy: string;
  since: string;
}

export interface ClusterRow {
  namespace: string;
  name: string;
  /** Name of the Cluster that owns the HarvesterCluster; empty before Cluster API has set it. */
  cluster: string;
  state: State;
  /** What the provider reports, the first cause first; empty if all is as it should be. */
  causes: Cause[];
  /** What the provider reports of parking, and of hosts that are evacuated. */
  parking: string;
  evacuation: string;
  machines: MachineRow[];
  endpoint: string;
  harvester: string;
  targetNamespace: string;
  identity: string;
  failureDomains: string[];
}

export interface MachineRow {
  /** Name of the HarvesterMachine, and of its VM on Harvester. */
  name: string;
  /** Name of the Machine that owns it, which differs. */
  machine: string;
  role: string;
  ready: boolean;
  state: State;
  causes: Cause[];
  addresses: string[];
  host: string;
  /** The host that the VM leaves; empty unless it is evacuated. */
  leaves: string;
  zone: string;
}

/**
 * Return the row of a HarvesterCluster.
 *
 * @param obj the object
 * @param machines HarvesterMachines, also of other clusters
 */
export function clusterRow(obj: HarvesterCluster, machines: HarvesterMachine[] = []): ClusterRow {
  const { metadata, spec = {}, status = {} } = obj;
  const conditions = status.conditions ?? [];
  const state = clusterState(obj);
  const rows = machinesOf(obj, machines).map(machine => machineRow(machine, state));
  const own = clusterCauses(conditions, state);
  // Machines repeat what their cluster reports.
  const causes = own.length ? own : rows.flatMap(row => row.causes);
  const { host, port } = spec.controlPlaneEndpoint ?? {};

  return {
    namespace: metadata.namespace ?? '',
    name: metadata.name,
    cluster: ownerOf(metadata, 'Cluster'),
    state: withWarning(state, causes),
    causes,
    parking: find(conditions, 'Parked')?.message ?? '',
    evacuation: find(conditions, 'HostsEvacuated')?.message ?? '',
    machines: rows,
    endpoint: host ? `${host}:${port ?? 6443}` : '',
    harvester: spec.server ?? '',
    targetNamespace: spec.targetNamespace ?? '',
    identity: identityOf(obj),
    failureDomains: (status.failureDomains ?? []).map(domain => domain.name),
  };
}

/**
 * Return the row of a HarvesterMachine.
 *
 * @param obj the object
 * @param cluster the state of its cluster, if it was read
 */
export function machineRow(obj: HarvesterMachine, cluster?: State): MachineRow {
  const { metadata, status = {} } = obj;
  const conditions = status.conditions ?? [];
  const state = machineState(obj, cluster);
  const causes =
    state.color === '' ? [] : reported(conditions, known.harvesterMachine, metadata.name);
  const addresses = (status.addresses ?? [])
    .filter(({ type }) => type.endsWith('IP'))
    .map(({ address }) => address);
  const allocated = status.allocatedIPAddress ? [status.allocatedIPAddress] : [];

  return {
    name: metadata.name,
    machine: ownerOf(metadata, 'Machine'),
    role: CONTROL_PLANE_LABEL in (metadata.labels ?? {}) ? 'control plane' : 'worker',
    ready: find(conditions, 'Ready')?.status === 'True' && state.color !== '',
    state: withWarning(state, causes),
    causes,
    addresses: [...new Set([...addresses, ...allocated])],
    host: status.virtualMachine?.host ?? '',
    leaves: metadata.annotations?.[known.evacuatedFrom] ?? '',
    zone: status.failureDomain ?? '',
  };
}

/** Return how many of some machines are ready, such as "2/3". */
export function readyCount(machines: MachineRow[]): string {
  return `${machines.filter(({ ready }) => ready).length}/${machines.length}`;
}

/** Return the machines of a cluster, those of the control plane first. */
function machinesOf(cluster: HarvesterCluster, machines: HarvesterMachine[]): HarvesterMachine[] {
  const name = ownerOf(cluster.metadata, 'Cluster');
  const order = ({ metadata }: HarvesterMachine) =>
    CONTROL_PLANE_LABEL in (metadata.labels ?? {}) ? 0 : 1;
  return machines
    .filter(
      ({ metadata }) =>
        metadata.namespace === cluster.metadata.namespace &&
        name !== '' &&
        metadata.labels?.[CLUSTER_NAME_LABEL] === name
    )
    .sort((a, b) => order(a) - order(b) || a.metadata.name.localeCompare(b.metadata.name));
}

function clusterState({ metadata, status = {} }: HarvesterCluster): State {
  const conditions = status.conditions ?? [];
  if (metadata.deletionTimestamp) return { label: 'Deleting', color: 'warning' };

  // Other conditions of a cluster that is parked or paused are those of the time before.
  const parked = find(conditions, 'Parked');
  if (parked?.status === 'True') return { label: 'Parked', color: '' };
  if (parked && PARKING.includes(parked.reason ?? '')) {
    const label = parked.reason === 'ParkBlocked' ? 'Park blocked' : String(parked.reason);
    return { label, color: 'warning' };
  }
  if (find(conditions, 'Paused')?.status === 'True') return { label: 'Paused', color: '' };

  const evacuation = find(conditions, 'HostsEvacuated');
  const state = readiness(conditions);
  if (
    state.label === 'Ready' &&
    isWrong(evacuation) &&
    EVACUATING.includes(evacuation?.reason ?? '')
  ) {
    return { label: 'Evacuating', color: 'warning' };
  }
  return state;
}

function machineState(obj: HarvesterMachine, cluster?: State): State {
  const conditions = obj.status?.conditions ?? [];
  if (obj.metadata.deletionTimestamp) return { label: 'Deleting', color: 'warning' };
  if (cluster?.label === 'Parked') return cluster;
  if (find(conditions, 'Paused')?.status === 'True') return { label: 'Paused', color: '' };
  if (obj.metadata.annotations?.[known.evacuatedFrom]) {
    return { label: 'Evacuating', color: 'warning' };
  }
  return readiness(conditions);
}

function readiness(conditions: Condition[]): State {
  const ready = find(conditions, 'Ready');
  if (!ready) return { label: 'Not reported yet', color: 'warning' };
  if (ready.status === 'True') return { label: 'Ready', color: 'success' };
  return known.passing.includes(ready.reason ?? '')
    ? { label: 'In progress', color: 'warning' }
    : { label: 'Not ready', color: 'error' };
}

function clusterCauses(conditions: Condition[], state: State): Cause[] {
  const parked = find(conditions, 'Parked');
  if (state.label === 'Paused') return [];
  // What a cluster waits for that is being parked or resumed explains everything else.
  if (state.label === 'Parked' || PARKING.includes(parked?.reason ?? '')) {
    return isWrong(parked) ? [causeOf(parked as Condition)] : [];
  }
  const causes = reported(conditions, known.harvesterCluster);
  // An evacuation explains hosts that take no new machines.
  const first = state.label === 'Evacuating' ? EVACUATING : [];
  return [
    ...causes.filter(({ reason }) => first.includes(reason)),
    ...causes.filter(({ reason }) => !first.includes(reason)),
  ];
}

/** Return the conditions that report a problem, without those that repeat a message. */
function reported(conditions: Condition[], types: string[], machine = ''): Cause[] {
  const causes = types
    .map(type => find(conditions, type))
    .filter(condition => isWrong(condition) && !known.chosen.includes(condition?.reason ?? ''))
    .map(condition => causeOf(condition as Condition, machine));
  const isNote = ({ reason }: Cause) => Number(known.notes.includes(reason));
  return causes
    .filter((cause, index) => causes.findIndex(other => other.message === cause.message) === index)
    .sort((a, b) => isNote(a) - isNote(b));
}

function causeOf(condition: Condition, machine = ''): Cause {
  const reason = condition.reason ?? '';
  return {
    machine,
    reason,
    message: condition.message || `${condition.type} is ${condition.status}`,
    remedy: REASONS[reason] ?? '',
    since: condition.lastTransitionTime ?? '',
  };
}

/** Return the state, or that the object works while something is wrong. */
function withWarning(state: State, causes: Cause[]): State {
  const harmless = [...known.notes, ...known.passing];
  const isDegraded = causes.some(({ reason }) => !harmless.includes(reason));
  return state.color === 'success' && isDegraded ? { label: 'Degraded', color: 'warning' } : state;
}

function find(conditions: Condition[], type: string): Condition | undefined {
  return conditions.find(condition => condition.type === type);
}

function isWrong(condition?: Condition): boolean {
  return condition !== undefined && condition.status !== 'True';
}

function ownerOf(metadata: HarvesterMachine['metadata'], kind: string): string {
  const owner = (metadata.ownerReferences ?? []).find(
    reference => reference.kind === kind && reference.apiVersion?.startsWith(CLUSTER_API_GROUP)
  );
  return owner?.name ?? '';
}

/** Return the name of the object with the credentials, never its content. */
function identityOf({ metadata, spec = {} }: HarvesterCluster): string {
  const { identityRef, identitySecret } = spec;
  if (identityRef?.name) return `HarvesterClusterIdentity ${identityRef.name}`;
  if (!identitySecret?.name) return '';
  return `Secret ${identitySecret.namespace || metadata.namespace}/${identitySecret.name}`;
}
