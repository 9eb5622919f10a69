import {
  EmptyContent,
  Link,
  Loader,
  NameValueTable,
  SectionBox,
  SimpleTable,
} from '@kinvolk/headlamp-plugin/lib/CommonComponents';
import { useParams } from 'react-router-dom';
import { Causes, CauseText, ClusterApiLink, Conditions, StateLabel } from './parts';
import {
  CLUSTERS,
  HarvesterClusterObject,
  HarvesterMachineObject,
  MACHINE,
  toJson,
} from './resources';
import { clusterRow, MachineRow } from './rows';

/** A HarvesterCluster with its machines. */
export function ClusterDetails() {
  const { namespace, name } = useParams<{ namespace: string; name: string }>();
  const [object, error] = HarvesterClusterObject.useGet(name, namespace);
  const { items, errors } = HarvesterMachineObject.useList({ namespace });

  if (error)
    return <EmptyContent>{`HarvesterCluster ${namespace}/${name}: ${error.message}`}</EmptyContent>;
  if (!object) return <Loader title="Reading the HarvesterCluster" />;

  const nearby = (items ?? []).filter(machine => machine.cluster === object.cluster);
  const cluster = clusterRow(object.jsonData, nearby.map(toJson));

  return (
    <>
      <SectionBox title={`HarvesterCluster ${name}`} backLink={CLUSTERS}>
        <NameValueTable
          rows={[
            { name: 'State', value: <StateLabel state={cluster.state} /> },
            { name: 'Namespace', value: cluster.namespace },
            {
              name: 'Cluster',
              value: <ClusterApiLink crd="clusters" namespace={namespace} name={cluster.cluster} />,
            },
            { name: 'Parking', value: cluster.parking, hide: !cluster.parking },
            {
              name: 'Evacuation',
              value: cluster.evacuation,
              hide: !cluster.evacuation,
            },
            { name: 'Endpoint', value: cluster.endpoint },
            { name: 'Harvester', value: cluster.harvester },
            { name: 'Namespace on Harvester', value: cluster.targetNamespace },
            { name: 'Identity', value: cluster.identity },
            { name: 'Failure domains', value: cluster.failureDomains.join(', ') },
          ]}
        />
      </SectionBox>
      <Causes causes={cluster.causes} />
      <SectionBox title="Machines">
        <SimpleTable
          columns={[
            {
              label: 'HarvesterMachine and VM',
              getter: (machine: MachineRow) => (
                <Link routeName={MACHINE} params={{ namespace, name: machine.name }}>
                  {machine.name}
                </Link>
              ),
            },
            {
              label: 'Machine',
              getter: (machine: MachineRow) => (
                <ClusterApiLink crd="machines" namespace={namespace} name={machine.machine} />
              ),
            },
            { label: 'Role', datum: 'role' },
            {
              label: 'State',
              getter: (machine: MachineRow) => <StateLabel state={machine.state} />,
            },
            {
              label: 'Cause',
              getter: (machine: MachineRow) => <CauseText cause={machine.causes[0]} />,
            },
            { label: 'Host', getter: hostText },
            { label: 'Zone', datum: 'zone' },
            {
              label: 'Addresses',
              getter: ({ addresses }: MachineRow) => addresses.join(', '),
            },
          ]}
          data={items && !errors?.length ? cluster.machines : null}
          errorMessage={errors?.length ? `HarvesterMachines: ${errors[0].message}` : null}
          emptyMessage="The cluster has no machines."
        />
      </SectionBox>
      <Conditions conditions={object.jsonData.status?.conditions} />
    </>
  );
}

export function hostText({ host, leaves }: MachineRow): string {
  if (!leaves) return host;
  return host && host !== leaves ? `${host} (left ${leaves})` : `leaves ${leaves}`;
}
