import { Link, ResourceListView } from '@kinvolk/headlamp-plugin/lib/CommonComponents';
import { useMemo } from 'react';
import { CauseText, StateLabel } from './parts';
import { HarvesterClusterObject, HarvesterMachineObject, toJson } from './resources';
import { ClusterRow, clusterRow, readyCount } from './rows';

/** All HarvesterClusters, with the first cause of what is wrong. */
export function ClusterList() {
  const { items: clusters, errors } = HarvesterClusterObject.useList();
  const { items: machines, errors: machineErrors } = HarvesterMachineObject.useList();

  const rows = useMemo(() => {
    const entries = (clusters ?? []).map((cluster): [string, ClusterRow] => {
      // Headlamp lists several management clusters at once.
      const nearby = (machines ?? []).filter(machine => machine.cluster === cluster.cluster);
      return [cluster.metadata.uid, clusterRow(cluster.jsonData, nearby.map(toJson))];
    });
    return new Map(entries);
  }, [clusters, machines]);
  const rowOf = (cluster: HarvesterClusterObject) => rows.get(cluster.metadata.uid);

  // Machines that may not be read exist.
  function machineCount(cluster: HarvesterClusterObject): string {
    const isUnread = machineErrors?.some(error => error.cluster === cluster.cluster);
    return machines && !isUnread ? readyCount(rowOf(cluster)?.machines ?? []) : 'unknown';
  }

  return (
    <ResourceListView
      title="Harvester clusters"
      id="caphv-clusters"
      data={clusters}
      errors={[...(errors ?? []), ...(machineErrors ?? [])]}
      enableRowActions={false}
      enableRowSelection={false}
      columns={[
        {
          id: 'name',
          label: 'Name',
          getValue: cluster => cluster.metadata.name,
          render: cluster => <Link kubeObject={cluster}>{cluster.metadata.name}</Link>,
        },
        'namespace',
        'cluster',
        {
          id: 'state',
          label: 'State',
          gridTemplate: 'min-content',
          getValue: cluster => rowOf(cluster)?.state.label,
          render: cluster => <StateLabel state={rowOf(cluster)?.state} />,
        },
        {
          id: 'cause',
          label: 'Cause',
          gridTemplate: 4,
          getValue: cluster => rowOf(cluster)?.causes[0]?.message,
          render: cluster => <CauseText cause={rowOf(cluster)?.causes[0]} />,
        },
        {
          id: 'machines',
          label: 'Machines ready',
          gridTemplate: 'min-content',
          getValue: machineCount,
        },
        {
          id: 'endpoint',
          label: 'Endpoint',
          gridTemplate: 'auto',
          getValue: cluster => rowOf(cluster)?.endpoint,
        },
        'age',
      ]}
    />
  );
}
