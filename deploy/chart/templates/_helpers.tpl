{{/*
Objects of a file that kustomize uses, too. `edit` names a template that changes an object (dict with object, root).
Namespaces become that of the release.
*/}}
{{- define "caphv.shared" -}}
{{- $call := . -}}
{{- range $document := regexSplit "(?m)^---\\s*$" ($call.root.Files.Get $call.file) -1 }}
{{- $object := fromYaml $document }}
{{- if $object.metadata.namespace }}
{{- $_ := set $object.metadata "namespace" $call.root.Release.Namespace }}
{{- end }}
{{- range $object.subjects }}
{{- $_ := set . "namespace" $call.root.Release.Namespace }}
{{- end }}
{{- with $call.edit }}
{{- $_ := include . (dict "object" $object "root" $call.root) }}
{{- end }}
---
{{ toYaml $object }}
{{- end }}
{{- end -}}
