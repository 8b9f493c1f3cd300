{{/* Names, labels and pod settings that several templates share. */}}

{{- define "duramen.fullname" -}}
{{- $name := .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- if contains "duramen" $name }}{{ $name }}{{ else }}{{ printf "%s-duramen" $name }}{{ end -}}
{{- end }}

{{- /* Refused here: the API server would refuse the LogCluster only after all else is installed. */ -}}
{{- define "duramen.cluster" -}}
{{- $name := .Values.cluster.name | default .Release.Name -}}
{{- if and .Values.cluster.create (not (regexMatch "^[a-z]([-a-z0-9]{0,38}[a-z0-9])?$" $name)) -}}
{{- fail (printf "%s is no name of a cluster: set cluster.name to at most 40 of a-z, 0-9 and '-', beginning with a letter" $name) -}}
{{- end -}}
{{- $name -}}
{{- end }}

{{- define "duramen.labels" -}}
{{ include "duramen.ownerLabels" . }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "duramen.ownerLabels" -}}
app.kubernetes.io/name: duramen
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{/* Of an image: the digest wins, then the tag, then the chart's appVersion. Argument: (list root suffix). */}}
{{- define "duramen.image" -}}
{{- $root := index . 0 -}}
{{- $image := $root.Values.image -}}
{{- $name := printf "%s%s" $image.repository (index . 1) -}}
{{- if and $image.digest (eq (index . 1) "") -}}
{{ printf "%s@%s" $name $image.digest }}
{{- else -}}
{{ printf "%s:%s" $name ($image.tag | default $root.Chart.AppVersion) }}
{{- end -}}
{{- end }}

{{/* What the restricted profile asks of a pod. */}}
{{- define "duramen.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{/* And of a container. */}}
{{- define "duramen.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
capabilities:
  drop: [ALL]
{{- end }}

{{- define "duramen.pullSecrets" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
{{- range . }}
  - name: {{ . }}
{{- end }}
{{- end }}
{{- end }}

{{/* "yes" if a kind of monitoring.coreos.com/v1 is to be made. Argument: (list root mode). */}}
{{- define "duramen.monitored" -}}
{{- $root := index . 0 -}}
{{- $mode := index . 1 -}}
{{- if or (eq $mode "always") (and (eq $mode "auto") ($root.Capabilities.APIVersions.Has "monitoring.coreos.com/v1")) -}}
yes
{{- end -}}
{{- end }}

{{- /* A release of before `tls` has no such value under --reuse-values: the default of values.yaml holds then. */ -}}
{{- define "duramen.issuer" -}}
{{- dig "issuer" "operator" (.Values.tls | default dict) -}}
{{- end }}

{{/* The clusters for which the operator issues certificates, as JSON: the chart's own, and those of tls.clusters. */}}
{{- define "duramen.issuedClusters" -}}
{{- $names := dig "clusters" list (.Values.tls | default dict) -}}
{{- if and .Values.cluster.create (eq .Values.security "on") (eq (include "duramen.issuer" .) "operator") -}}
{{- $names = prepend $names (include "duramen.cluster" .) -}}
{{- end -}}
{{- $names | uniq | toJson -}}
{{- end }}

{{/* What their Secrets are called behind the cluster's name: SECRETS in the operator's plan/cluster/nodes.py. */}}
{{- define "duramen.secretWords" -}}
{{- list "ca" "bookies" "sequencers" "zookeeper" "writeproxies" "readproxies" "public" "operator" "monitor" "archive" | toJson -}}
{{- end }}

{{/* The name of one of them, cut as the operator's `shorten` does. Argument: (list cluster word). */}}
{{- define "duramen.secretName" -}}
{{- $text := join "-" . -}}
{{- if le (len $text) 48 }}{{ $text }}{{ else -}}
{{ printf "%s-%s" (regexReplaceAll "-+$" (trunc 39 $text) "") (sha256sum $text | trunc 8) }}
{{- end -}}
{{- end }}
