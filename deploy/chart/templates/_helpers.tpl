{{/*
Objects of a file that kustomize uses, too. `edit` names a template that changes an object: it gets what this one got,
and the object, which it drops by removing its kind. Namespaces become that of the release.
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
{{- if $object.kind }}
---
{{ toYaml $object }}
{{- end }}
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

{{/* A Pod without this volume. */}}
{{- define "caphv.unmount" -}}
{{- $container := index .pod.containers 0 }}
{{- $mounts := include "caphv.without" (dict "list" $container.volumeMounts "name" .name) | fromYamlArray }}
{{- $_ := set $container "volumeMounts" $mounts }}
{{- $_ := set .pod "volumes" (include "caphv.without" (dict "list" .pod.volumes "name" .name) | fromYamlArray) }}
{{- end -}}

{{/* What the values say of both Pods: image, proxy, and where they may run. `image` has values before those of both. */}}
{{- define "caphv.pod" -}}
{{- $pod := .pod -}}
{{- $values := .root.Values -}}
{{- range $name := list "imagePullSecrets" "nodeSelector" "affinity" "priorityClassName" }}
{{- with index $values $name }}
{{- $_ := set $pod $name . }}
{{- end }}
{{- end }}
{{- if $values.tolerations }}
{{- $_ := set $pod "tolerations" $values.tolerations }}
{{- else }}
{{- $_ := unset $pod "tolerations" }}
{{- end }}
{{- $container := index $pod.containers 0 }}
{{- $tag := coalesce .image.tag $values.image.tag (printf "%s%s" .root.Chart.AppVersion .suffix) }}
{{- $_ := set $container "image" (printf "%s:%s" (coalesce .image.repository $values.image.repository) $tag) }}
{{- $_ := set $container "imagePullPolicy" $values.image.pullPolicy }}
{{- with $values.proxy.url }}
{{- $exceptions := join "," $values.proxy.exceptions }}
{{- $proxy := list (dict "name" "HTTPS_PROXY" "value" .) (dict "name" "NO_PROXY" "value" $exceptions) }}
{{- $_ := set $container "env" (concat $container.env $proxy) }}
{{- end }}
{{- end -}}

{{/* For objects of one namespace, the rights that are in namespaces are in that one only, and no shared identity has tokens. */}}
{{- define "caphv.rbac" -}}
{{- $namespace := .root.Values.watchNamespace }}
{{- if and $namespace (regexMatch "^caphv-(manager|packager)-role(binding)?$" .object.metadata.name) }}
{{- $_ := set .object "kind" (trimPrefix "Cluster" .object.kind) }}
{{- $_ := set .object.metadata "namespace" $namespace }}
{{- with .object.roleRef }}
{{- $_ := set . "kind" "Role" }}
{{- end }}
{{- end }}
{{- /* Such a provider uses no HarvesterClusterIdentity, and thus renews no token. */}}
{{- if and $namespace (hasPrefix "caphv-token-renewal-" .object.metadata.name) }}
{{- $_ := unset .object "kind" }}
{{- end }}
{{- end -}}
