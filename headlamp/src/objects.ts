// The fields that the plugin reads of the provider's objects: no more than `kubectl get` shows.

export interface Condition {
  type: string;
  status: string;
  reason?: string;
  message?: string;
  lastTransitionTime?: string;
}

interface Metadata {
  name: string;
  namespace?: string;
  labels?: Record<string, string>;
  annotations?: Record<string, string>;
  deletionTimestamp?: string;
  ownerReferences?: { apiVersion?: string; kind: string; name: string }[];
}

export interface HarvesterCluster {
  metadata: Metadata;
  spec?: {
    server?: string;
    targetNamespace?: string;
    identityRef?: { name?: string };
    identitySecret?: { namespace?: string; name?: string };
    controlPlaneEndpoint?: { host?: string; port?: number };
  };
  status?: {
    conditions?: Condition[];
    failureDomains?: { name: string }[];
  };
}

export interface HarvesterMachine {
  metadata: Metadata;
  spec?: { cpu?: number; memory?: string };
  status?: {
    conditions?: Condition[];
    addresses?: { type: string; address: string }[];
    allocatedIPAddress?: string;
    failureDomain?: string;
    virtualMachine?: { host?: string };
  };
}
