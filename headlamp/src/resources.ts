import { KubeObject } from '@kinvolk/headlamp-plugin/lib/k8s/cluster';
import { HarvesterMachine } from './objects';

const API_VERSION = 'infrastructure.cluster.x-k8s.io/v1beta1';

/** Names of the routes that index.tsx registers. */
export const CLUSTERS = 'HarvesterClusters';
export const CLUSTER = 'HarvesterCluster';
export const MACHINE = 'HarvesterMachine';

export class HarvesterClusterObject extends KubeObject {
  static kind = 'HarvesterCluster';
  static apiName = 'harvesterclusters';
  static apiVersion = API_VERSION;
  static isNamespaced = true;

  static get detailsRoute() {
    return CLUSTER;
  }
}

export class HarvesterMachineObject extends KubeObject {
  static kind = 'HarvesterMachine';
  static apiName = 'harvestermachines';
  static apiVersion = API_VERSION;
  static isNamespaced = true;

  static get detailsRoute() {
    return MACHINE;
  }
}

/** Return the object as the API server has sent it. */
export function toJson(machine: HarvesterMachineObject): HarvesterMachine {
  return machine.jsonData;
}
