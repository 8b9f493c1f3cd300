{{/* The custom resources that the chart wants to be there. */}}
{{- define "duramen.storage" -}}
size: {{ .size | quote }}
{{- with .storageClassName }}
storageClassName: {{ . }}
{{- end }}
{{- end }}

{{- define "duramen.defaults" -}}
{{- $cluster := include "duramen.cluster" . -}}
{{- $spec := .Values.cluster -}}
{{- /* A release of before the audit log has no such value under --reuse-values. */ -}}
{{- $audited := dig "require" false ($spec.audit | default dict) -}}
{{- if $spec.create -}}
{{- if and (eq .Values.security "none") (not .Values.acceptAnybody) -}}
{{- fail "with security: none whoever reaches a port may do everything: if that is meant, set acceptAnybody=true; else leave security out" -}}
{{- end -}}
{{- if and (eq .Values.security "on") .Values.acceptAnybody -}}
{{- fail "with security: on nobody is let in without an identity or a token: take acceptAnybody away, or set security=none" -}}
{{- end -}}
{{- if and (eq .Values.security "none") (or $audited $spec.issuersConfigMap) -}}
{{- fail "with security: none nobody is known: take cluster.audit.require and cluster.issuersConfigMap away, or set security=on" -}}
{{- end -}}
{{- $asked := dict -}}
{{- if and (eq .Values.security "on") (eq (include "duramen.issuer" .) "certManager") -}}
{{- $tls := .Values.tls | default dict -}}
{{- $asked = dict "name" (dig "issuerRef" "name" "" $tls) "kind" (dig "issuerRef" "kind" "Issuer" $tls) "trust" (dig "trustConfigMap" "" $tls) -}}
{{- if not (and $asked.name $asked.trust) -}}
{{- fail "tls.issuer: certManager needs tls.issuerRef.name, the issuer that signs, and tls.trustConfigMap, a ConfigMap with its CA in ca.crt" -}}
{{- end -}}
{{- end -}}
apiVersion: duramen.io/v1alpha1
kind: LogCluster
metadata:
  name: {{ $cluster }}
  labels: {{- include "duramen.labels" . | nindent 4 }}
spec:
  image: {{ include "duramen.image" (list . "") }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  {{- with .Values.image.pullSecrets }}
  imagePullSecrets: {{- toYaml . | nindent 4 }}
  {{- end }}
  security: {{ .Values.security | quote }}
  acceptAnybody: {{ .Values.acceptAnybody }}
  {{- if eq .Values.security "on" }}
  tls:
    issuer: {{ include "duramen.issuer" . }}
    {{- with $asked }}
    issuerRef:
      name: {{ .name | quote }}
      kind: {{ .kind }}
    trust:
      name: {{ .trust | quote }}
    {{- end }}
  {{- with $spec.issuersConfigMap }}
  issuers:
    name: {{ . | quote }}
  {{- end }}
  audit:
    require: {{ $audited }}
  {{- end }}
  {{- with $spec.domains }}
  domains: {{- toYaml . | nindent 4 }}
  {{- end }}
  placement: {{ $spec.placement }}
  gossip: {{ $spec.gossip }}
  metadataLogs: {{ $spec.metadataLogs }}
  {{- with $spec.publicNames }}
  publicNames: {{- toYaml . | nindent 4 }}
  {{- end }}
  zookeeper:
    {{- if $spec.zookeeper.externalServers }}
    external:
      servers: {{ $spec.zookeeper.externalServers | quote }}
    {{- else }}
    members: {{ $spec.zookeeper.members }}
    image: {{ $spec.zookeeper.image | default (include "duramen.image" (list . "-zookeeper")) }}
    storage: {{- include "duramen.storage" $spec.zookeeper.storage | nindent 6 }}
    resources: {{- toYaml $spec.zookeeper.resources | nindent 6 }}
    {{- end }}
  sequencers: {{- toYaml $spec.sequencers | nindent 4 }}
  {{- range $role := list "writeProxies" "readProxies" }}
  {{- $proxies := index $spec $role }}
  {{ $role }}:
    replicas: {{ $proxies.replicas }}
    {{- with $proxies.autoscaling }}
    autoscaling: {{- toYaml . | nindent 6 }}
    {{- end }}
    resources: {{- toYaml $proxies.resources | nindent 6 }}
  {{- end }}
  {{- if $spec.coldStore.url }}
  coldStore:
    url: {{ $spec.coldStore.url | quote }}
    {{- with $spec.coldStore.claimName }}
    claimName: {{ . }}
    {{- end }}
    {{- with $spec.coldStore.secretName }}
    secretName: {{ . }}
    {{- end }}
  {{- end }}
  archive:
    image: {{ $spec.archive.image | default (include "duramen.image" (list . "-spark")) }}
    runner: {{ $spec.archive.runner }}
---
apiVersion: duramen.io/v1alpha1
kind: BookieSet
metadata:
  name: {{ $cluster }}
  labels: {{- include "duramen.labels" . | nindent 4 }}
spec:
  clusterName: {{ $cluster }}
  replicas: {{ .Values.bookies.replicas }}
  journal: {{- include "duramen.storage" .Values.bookies.journal | nindent 4 }}
  ledgers: {{- include "duramen.storage" .Values.bookies.ledgers | nindent 4 }}
  claims: {{ .Values.bookies.claims }}
  resources: {{- toYaml .Values.bookies.resources | nindent 4 }}
{{- if .Values.logNamespace.create }}
---
apiVersion: duramen.io/v1alpha1
kind: LogNamespace
metadata:
  name: {{ .Values.logNamespace.name }}
  labels: {{- include "duramen.labels" . | nindent 4 }}
spec:
  clusterName: {{ $cluster }}
  {{- with .Values.logNamespace.defaults }}
  defaults: {{- toYaml . | nindent 4 }}
  {{- end }}
  deletionPolicy: {{ .Values.logNamespace.deletionPolicy }}
{{- end }}
{{- end }}
{{- end }}
