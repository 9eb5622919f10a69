// Parts that several views have.

import {
  DateLabel,
  Link,
  SectionBox,
  SimpleTable,
  StatusLabel,
} from '@kinvolk/headlamp-plugin/lib/CommonComponents';
import { Box, Typography } from '@mui/material';
import { Condition } from './objects';
import { Cause, State } from './rows';

export function StateLabel({ state }: { state?: State }) {
  if (!state) return null;
  return <StatusLabel status={state.color}>{state.label}</StatusLabel>;
}

/** The first cause in few words, for a table. */
export function CauseText({ cause }: { cause?: Cause }) {
  if (!cause) return null;
  return (
    <Box sx={{ overflowWrap: 'anywhere', whiteSpace: 'normal' }}>
      <Typography variant="body2" component="span" fontWeight="bold">
        {cause.reason}
      </Typography>{' '}
      {cause.machine && `${cause.machine}: `}
      <Typography variant="body2" component="span">
        {cause.message}
      </Typography>
    </Box>
  );
}

/** What the provider reports, in its words, with what its documentation says to do. */
export function Causes({ causes }: { causes: Cause[] }) {
  if (!causes.length) return null;
  return (
    <SectionBox title="Causes and remedies">
      <SimpleTable
        columns={[
          {
            label: 'Cause',
            getter: (cause: Cause) => <CauseText cause={cause} />,
            gridTemplate: 4,
          },
          {
            label: 'Meaning and remedy',
            getter: (cause: Cause) => cause.remedy,
            gridTemplate: 4,
          },
          {
            label: 'Since',
            getter: (cause: Cause) => cause.since && <DateLabel date={cause.since} />,
            gridTemplate: 1,
          },
        ]}
        data={causes}
      />
    </SectionBox>
  );
}

export function Conditions({ conditions = [] }: { conditions?: Condition[] }) {
  return (
    <SectionBox title="Conditions">
      <SimpleTable
        columns={[
          { label: 'Condition', datum: 'type' },
          { label: 'Status', datum: 'status', gridTemplate: 'min-content' },
          { label: 'Reason', datum: 'reason' },
          { label: 'Message', datum: 'message', gridTemplate: 3 },
          {
            label: 'Since',
            getter: ({ lastTransitionTime }: Condition) =>
              lastTransitionTime && <DateLabel date={lastTransitionTime} />,
          },
        ]}
        data={conditions}
        emptyMessage="The provider has not reported anything yet."
      />
    </SectionBox>
  );
}

/** A link to Headlamp's own page of an object of Cluster API. */
export function ClusterApiLink(props: { crd: string; namespace: string; name: string }) {
  const { crd, namespace, name } = props;
  if (!name) return null;
  return (
    <Link
      routeName="customresource"
      params={{ crd: `${crd}.cluster.x-k8s.io`, namespace, crName: name }}
    >
      {name}
    </Link>
  );
}
