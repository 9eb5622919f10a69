import {
  EmptyContent,
  Loader,
  NameValueTable,
  SectionBox,
} from '@kinvolk/headlamp-plugin/lib/CommonComponents';
import { useParams } from 'react-router-dom';
import { hostText } from './ClusterDetails';
import { Causes, ClusterApiLink, Conditions, StateLabel } from './parts';
import { HarvesterMachineObject } from './resources';
import { machineRow } from './rows';

/** A HarvesterMachine with its VM. */
export function MachineDetails() {
  const { namespace, name } = useParams<{ namespace: string; name: string }>();
  const [object, error] = HarvesterMachineObject.useGet(name, namespace);

  if (error)
    return <EmptyContent>{`HarvesterMachine ${namespace}/${name}: ${error.message}`}</EmptyContent>;
  if (!object) return <Loader title="Reading the HarvesterMachine" />;

  const machine = machineRow(object.jsonData);
  const { cpu, memory } = object.jsonData.spec ?? {};

  return (
    <>
      <SectionBox title={`HarvesterMachine ${name}`} backLink>
        <NameValueTable
          rows={[
            { name: 'State', value: <StateLabel state={machine.state} /> },
            { name: 'Namespace', value: namespace },
            {
              name: 'Machine',
              value: <ClusterApiLink crd="machines" namespace={namespace} name={machine.machine} />,
            },
            { name: 'Role', value: machine.role },
            { name: 'VM on Harvester', value: machine.name },
            { name: 'Host', value: hostText(machine) },
            { name: 'Zone', value: machine.zone },
            { name: 'Addresses', value: machine.addresses.join(', ') },
            { name: 'CPU and memory', value: cpu ? `${cpu} CPU, ${memory}` : '' },
          ]}
        />
      </SectionBox>
      <Causes causes={machine.causes} />
      <Conditions conditions={object.jsonData.status?.conditions} />
    </>
  );
}
