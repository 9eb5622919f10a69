import { registerRoute, registerSidebarEntry } from '@kinvolk/headlamp-plugin/lib';
import { ClusterDetails } from './ClusterDetails';
import { ClusterList } from './ClusterList';
import { MachineDetails } from './MachineDetails';
import { CLUSTER, CLUSTERS, MACHINE } from './resources';

const PATH = '/caphv/clusters';

registerSidebarEntry({
  parent: null,
  name: CLUSTERS,
  label: 'Harvester clusters',
  icon: 'mdi:server',
  url: PATH,
});
registerRoute({
  path: PATH,
  name: CLUSTERS,
  sidebar: CLUSTERS,
  exact: true,
  component: () => <ClusterList />,
});
registerRoute({
  path: `${PATH}/:namespace/:name`,
  name: CLUSTER,
  sidebar: CLUSTERS,
  exact: true,
  component: () => <ClusterDetails />,
});
registerRoute({
  path: '/caphv/machines/:namespace/:name',
  name: MACHINE,
  sidebar: CLUSTERS,
  exact: true,
  component: () => <MachineDetails />,
});
