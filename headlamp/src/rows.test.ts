import { describe, expect, it } from 'vitest';
import known from './conditions.json';
import fixtures from './fixtures.json';
import { Condition, HarvesterCluster, HarvesterMachine } from './objects';
import { clusterRow, machineRow, readyCount } from './rows';

// Recorded from the provider in a sandbox. production is ready while a host is evacuated, staging is
// parked, test names an image that does not exist, and broken such a pool. In the outage, Harvester
// does not answer. In the evacuation, the provider moves a machine with a device from harvester-2.
const { calm, outage, evacuation } = fixtures;
const MACHINES = only<HarvesterMachine>(calm, 'HarvesterMachine');

function only<T>(objects: { kind: string }[], kind: string): T[] {
  return objects.filter(obj => obj.kind === kind) as unknown as T[];
}

function cluster(name: string, objects: { kind: string }[] = calm): HarvesterCluster {
  const clusters = only<HarvesterCluster>(objects, 'HarvesterCluster');
  const obj = clusters.find(({ metadata }) => metadata.name.startsWith(`${name}-`));
  if (!obj) throw new Error(`no HarvesterCluster of ${name}`);
  return structuredClone(obj);
}

/** Return the cluster with these conditions instead of those of the same types. */
function withConditions(obj: HarvesterCluster, ...conditions: Condition[]): HarvesterCluster {
  const types = conditions.map(({ type }) => type);
  const others = (obj.status?.conditions ?? []).filter(({ type }) => !types.includes(type));
  return { ...obj, status: { ...obj.status, conditions: [...others, ...conditions] } };
}

/** Return the cluster that runs, as it is without the evacuation of a host. */
function settled(): HarvesterCluster {
  return withConditions(cluster('production'), {
    type: 'FailureDomainsAvailable',
    status: 'True',
  });
}

describe('clusterRow', () => {
  it('shows a cluster that is ready, with its machines', () => {
    const row = clusterRow(settled(), MACHINES);
    expect(row.state).toEqual({ label: 'Ready', color: 'success' });
    expect(row.causes).toEqual([]);
    expect(row.cluster).toBe('production');
    expect(row.endpoint).toMatch(/^127\.\d+\.10\.\d+:6443$/);
    expect(row.identity).toBe('Secret team-a/harvester-identity');
    expect(row.failureDomains).toEqual(['zone-1', 'zone-2', 'zone-3']);
    expect(row.machines.map(({ role }) => role)).toEqual(['control plane', 'worker', 'worker']);
    expect(readyCount(row.machines)).toBe('3/3');
    expect(row.evacuation).toContain('harvester-3');
  });

  it('shows the cause of a cluster that cannot become ready by the message of its condition', () => {
    const obj = cluster('broken');
    const ready = obj.status?.conditions?.find(({ type }) => type === 'Ready');
    const row = clusterRow(obj, MACHINES);
    expect(row.state).toEqual({ label: 'Not ready', color: 'error' });
    expect(row.causes).toHaveLength(1);
    expect(row.causes[0].message).toBe(ready?.message);
    expect(row.causes[0].reason).toBe('InfrastructureProvisioningFailed');
    expect(row.causes[0].remedy).toBe('A change is required; the message says which.');
  });

  it('shows what a machine reports if its cluster reports nothing', () => {
    const row = clusterRow(cluster('test'), MACHINES);
    expect(row.state).toEqual({ label: 'Degraded', color: 'warning' });
    expect(row.causes[0].machine).toBe(row.machines[0].name);
    expect(row.causes[0].message).toContain('Harvester has no such image; upload it');
    expect(readyCount(row.machines)).toBe('0/1');
  });

  it('shows an outage first, and once, while the cluster stays ready', () => {
    const machines = only<HarvesterMachine>(outage, 'HarvesterMachine');
    const row = clusterRow(cluster('production', outage), machines);
    expect(row.state).toEqual({ label: 'Degraded', color: 'warning' });
    expect(row.causes[0].reason).toBe('HarvesterUnreachable');
    expect(row.causes.map(({ machine }) => machine)).toEqual(['', '']);
    expect(row.causes[1].reason).toBe('FailureDomainUnavailable');
  });

  it('shows a parked cluster without what its conditions reported before', () => {
    const row = clusterRow(cluster('staging'), MACHINES);
    expect(row.state).toEqual({ label: 'Parked', color: '' });
    expect(row.causes).toEqual([]);
    expect(row.parking).toMatch(/^parked since /);
    expect(row.machines.map(({ state }) => state.label)).toEqual(['Parked', 'Parked']);
    expect(readyCount(row.machines)).toBe('0/2');
  });

  it.each([
    ['Parking', 'Parking'],
    ['Resuming', 'Resuming'],
    ['ParkBlocked', 'Park blocked'],
  ])('shows how far parking is: %s', (reason, label) => {
    const parked = { type: 'Parked', status: 'False', reason, message: 'waiting for workers' };
    const row = clusterRow(withConditions(cluster('staging'), parked), MACHINES);
    expect(row.state.label).toBe(label);
    expect(row.causes[0].message).toBe('waiting for workers');
    expect(row.causes[0].remedy).toBe(known.reasons[reason as 'Parking']);
  });

  it('shows which machine leaves a host, and what that waits for', () => {
    const machines = only<HarvesterMachine>(evacuation, 'HarvesterMachine');
    const row = clusterRow(cluster('gpu', evacuation), machines);
    expect(row.state).toEqual({ label: 'Evacuating', color: 'warning' });
    expect(row.causes[0].reason).toBe('Evacuating');
    expect(row.causes[0].message).toMatch(/^gpu-md-0-.* leaves harvester-2: waiting for /);
    expect(row.evacuation).toBe(row.causes[0].message);
    expect(row.machines.map(({ leaves }) => leaves)).toEqual(['', 'harvester-2']);
    expect(row.machines[1].state.label).toBe('Evacuating');
  });

  it('shows no cause for a decision of the user', () => {
    const bundles = {
      type: 'AddonBundlesReady',
      status: 'False',
      reason: 'AddonBundlesSuspended',
    };
    const row = clusterRow(withConditions(settled(), bundles), MACHINES);
    expect(row.state.color).toBe('success');
  });

  it('shows what impairs nothing after what does', () => {
    const bundles = { type: 'AddonBundlesReady', status: 'False', reason: 'AddonBundlesMissing' };
    const reason = 'HarvesterConnectionInProgress';
    const passing = { type: 'HostsEvacuated', status: 'Unknown', reason };
    expect(clusterRow(withConditions(settled(), passing), MACHINES).state.label).toBe('Ready');
    const quiet = clusterRow(withConditions(settled(), bundles), MACHINES);
    expect(quiet.state).toEqual({ label: 'Ready', color: 'success' });
    expect(quiet.causes[0].reason).toBe('AddonBundlesMissing');
    const images = { type: 'ImagesReady', status: 'False', reason: 'ImageImportFailed' };
    const row = clusterRow(withConditions(settled(), bundles, images), MACHINES);
    expect(row.causes.map(({ reason }) => reason)).toEqual([
      'ImageImportFailed',
      'AddonBundlesMissing',
    ]);
  });

  it('shows a paused cluster as paused', () => {
    const paused = { type: 'Paused', status: 'True', reason: 'Paused' };
    const ready = { type: 'Ready', status: 'False', reason: 'HarvesterUnreachable' };
    const row = clusterRow(withConditions(cluster('production'), paused, ready), []);
    expect(row.state).toEqual({ label: 'Paused', color: '' });
    expect(row.causes).toEqual([]);
  });

  it('shows normal steps as progress', () => {
    const reason = 'HarvesterConnectionInProgress';
    const ready = { type: 'Ready', status: 'False', reason, message: 'connecting' };
    const row = clusterRow(withConditions(cluster('production'), ready), []);
    expect(row.state).toEqual({ label: 'In progress', color: 'warning' });
  });

  it('shows objects without status, owner and spec', () => {
    const row = clusterRow({ metadata: { name: 'new', namespace: 'team-a' } }, MACHINES);
    expect(row.state).toEqual({ label: 'Not reported yet', color: 'warning' });
    expect(row.machines).toEqual([]);
    expect([row.endpoint, row.identity, row.cluster]).toEqual(['', '', '']);
  });

  it('names shared credentials', () => {
    const obj = cluster('production');
    const spec = { ...obj.spec, identitySecret: undefined, identityRef: { name: 'shared' } };
    expect(clusterRow({ ...obj, spec }).identity).toBe('HarvesterClusterIdentity shared');
  });

  it('takes no machine of a cluster with the same name in another namespace', () => {
    const obj = cluster('production');
    obj.metadata.namespace = 'team-b';
    expect(clusterRow(obj, MACHINES).machines).toEqual([]);
  });
});

describe('machineRow', () => {
  const machine = () =>
    structuredClone(MACHINES.find(({ metadata }) => metadata.name.startsWith('production-md-'))!);

  it('shows VM, Machine, host, zone and address', () => {
    const row = machineRow(machine());
    expect(row.state).toEqual({ label: 'Ready', color: 'success' });
    expect(row.machine).not.toBe('');
    expect(row.machine).not.toBe(row.name.replace('production-md-0', ''));
    expect(row.host).toMatch(/^harvester-\d$/);
    expect(row.addresses).toHaveLength(1);
    expect(row.addresses[0]).toMatch(/^127\.\d+\.32\.\d+$/);
  });

  it('shows drift of a VM that is ready', () => {
    const obj = machine();
    const message = 'memory is 4Gi instead of 8Gi';
    const conditions = obj.status!.conditions!.filter(({ type }) => type !== 'VMUpToDate');
    conditions.push({ type: 'VMUpToDate', status: 'False', reason: 'VMDiffers', message });
    const row = machineRow({ ...obj, status: { ...obj.status, conditions } });
    expect(row.state).toEqual({ label: 'Degraded', color: 'warning' });
    expect(row.causes.map(cause => cause.message)).toEqual([message]);
  });

  it('shows a machine that is being deleted', () => {
    const obj = machine();
    obj.metadata.deletionTimestamp = '2026-11-28T03:00:00Z';
    expect(machineRow(obj).state.label).toBe('Deleting');
  });
});

it('knows a remedy for every reason that may pass, and for every decision of a user', () => {
  const reasons: Record<string, string> = known.reasons;
  expect([...known.passing, ...known.chosen].filter(reason => !reasons[reason])).toEqual([]);
});
