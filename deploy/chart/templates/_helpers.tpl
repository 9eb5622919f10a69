{{/*
Objects of a file that kustomize uses, too. `edit` names a template that changes an object: it gets what this one got,
and the object. Namespaces become that of the release.
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
{{- $_ := include . (set $call "object" $object) }}
{{- end }}
---
{{ toYaml $object }}
{{- end }}
{{- end -}}

{{/* Those of a list of objects that have other names than this one. */}}
{{- define "caphv.without" -}}
{{- $name := .name -}}
{{- $left := list -}}
{{- range .list }}
{{- if ne .name $name }}
{{- $left = append $left . }}
{{- end }}
{{- end }}
{{- toYaml $left }}
{{- end -}}
