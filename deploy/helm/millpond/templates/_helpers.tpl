{{/* What every object of one part (gateway, consumer, gc) is selected by. Call with (dict "root" $ "part" "gateway"), and with
"key" for an entry of `consumers`. */}}
{{- define "millpond.selector" -}}
app.kubernetes.io/name: millpond
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .part }}
{{- with .key }}
millpond.dev/consumer: {{ . }}
{{- end }}
{{- end }}

{{- define "millpond.labels" -}}
{{ include "millpond.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end }}

{{/* At most 63 characters with what is appended: -admin to the gateway's, and 11 characters by a StatefulSet's controller, for a
label, to a consumer's. */}}
{{- define "millpond.name" -}}
{{- $part := .part -}}
{{- with .key -}}
{{- $part = printf "%s-%s" $part . -}}
{{- end -}}
{{- $room := ternary 34 40 (eq .part "consumer") -}}
{{- $release := .root.Release.Name | trunc (ternary 17 $room (hasKey . "key")) | trimSuffix "-" -}}
{{- if contains "millpond" $release -}}
{{ $release }}-{{ $part }}
{{- else -}}
{{ $release }}-millpond-{{ $part }}
{{- end -}}
{{- end }}

{{/* Values with those of another map over them, as YAML. Sprig's merge functions skip false, 0 and "". Call with
(dict "base" map "over" map). */}}
{{- define "millpond.merged" -}}
{{- $merged := deepCopy .base -}}
{{- range $name, $value := .over -}}
{{- if and (kindIs "map" $value) (kindIs "map" (get $merged $name)) -}}
{{- $value = include "millpond.merged" (dict "base" (get $merged $name) "over" $value) | fromYaml -}}
{{- end -}}
{{- $_ := set $merged $name $value -}}
{{- end -}}
{{- toYaml $merged -}}
{{- end }}

{{/* Call with (dict "root" $ "part" "gateway" "account" .Values.gateway.serviceAccount). */}}
{{- define "millpond.serviceAccountName" -}}
{{- if .account.create -}}
{{ .account.name | default (include "millpond.name" .) }}
{{- else -}}
{{ required (printf "serviceAccount.name of %s: give the account's name, or let the chart create one" .part) .account.name }}
{{- end -}}
{{- end }}

{{- define "millpond.serviceAccount" -}}
{{- if .account.create }}
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ include "millpond.serviceAccountName" . }}
  namespace: {{ .root.Release.Namespace }}
  labels: {{- include "millpond.labels" . | nindent 4 }}
  {{- with .account.annotations }}
  annotations: {{- toYaml . | nindent 4 }}
  {{- end }}
automountServiceAccountToken: false
{{- end }}
{{- end }}

{{- define "millpond.image" -}}
{{ required "image.repository: give the repository that deploy/Dockerfile's image was pushed to" .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* A memory limit as the program takes it (256MiB, 1GiB), in bytes. */}}
{{- define "millpond.bytes" -}}
{{- if hasSuffix "GiB" . -}}
{{ mul (trimSuffix "GiB" . | int64) 1073741824 }}
{{- else -}}
{{ mul (trimSuffix "MiB" . | int64) 1048576 }}
{{- end -}}
{{- end }}

{{/* Memory for a pod whose program has that limit: it stays within a quarter more (design/performance.md), and 64 MiB for
the program itself. */}}
{{- define "millpond.podMemory" -}}
{{- $limit := include "millpond.bytes" . | int64 -}}
{{ div (add $limit (div $limit 4) 67108864) 1048576 }}Mi
{{- end }}

{{- define "millpond.resources" -}}
requests:
  cpu: {{ .cpu }}
  memory: {{ include "millpond.podMemory" .memoryLimit }}
limits:
  memory: {{ include "millpond.podMemory" .memoryLimit }}
{{- end }}

{{- define "millpond.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "millpond.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{/* Where the buffer is, as variables. */}}
{{- define "millpond.store" -}}
- name: MILLPOND_BUFFER
  value: {{ required "buffer: give the buffer's URL, such as s3://bucket/prefix" .Values.buffer | quote }}
{{- with .Values.s3.endpoint }}
- name: MILLPOND_S3_ENDPOINT
  value: {{ . | quote }}
{{- end }}
{{- with .Values.s3.region }}
- name: MILLPOND_S3_REGION
  value: {{ . | quote }}
{{- end }}
{{- if .Values.s3.allowHttp }}
- name: MILLPOND_ALLOW_HTTP
  value: "true"
{{- end }}
- name: MILLPOND_LOG_FORMAT
  value: {{ .Values.log.format | quote }}
{{- end }}

{{/* Call with (dict "root" $ "values" .Values.gateway). */}}
{{- define "millpond.telemetry" -}}
{{- $part := .values.telemetry }}
{{- with .root.Values.telemetry }}
{{- if .endpoint }}
- name: MILLPOND_OTLP_ENDPOINT
  value: {{ .endpoint | quote }}
{{- if .traces }}
- name: MILLPOND_OTLP_TRACES
  value: {{ .traces | quote }}
{{- end }}
{{- with $part.headersSecret }}
- name: MILLPOND_OTLP_HEADERS
  valueFrom: {secretKeyRef: {name: {{ . }}, key: {{ $part.headersKey }}}}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* The variables with which TLS libraries find CAs: the image's bundle, and the folder of the private CA. */}}
{{- define "millpond.ca" -}}
{{- with .Values.ca }}
{{- if and .configMap .secretName }}
{{- fail "ca.configMap and ca.secretName exclude each other" }}
{{- end }}
{{- if or .configMap .secretName }}
- name: SSL_CERT_FILE
  value: /etc/ssl/certs/ca-certificates.crt
- name: SSL_CERT_DIR
  value: /etc/millpond/ca
{{- end }}
{{- end }}
{{- end }}

{{- define "millpond.extraEnv" -}}
{{- with .extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* A part's mounts: those of its files (as YAML), the private CA and the extra ones. Call with (dict "root" $ "values"
.Values.gateway "files" text). */}}
{{- define "millpond.volumeMounts" -}}
{{- $mounts := .files | default "" | fromYamlArray }}
{{- if or .root.Values.ca.configMap .root.Values.ca.secretName }}
{{- $mounts = append $mounts (dict "name" "ca" "mountPath" "/etc/millpond/ca" "readOnly" true) }}
{{- end }}
{{- with concat $mounts .values.extraVolumeMounts }}
volumeMounts: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* The volumes of these mounts. */}}
{{- define "millpond.volumes" -}}
{{- $volumes := .files | default "" | fromYamlArray }}
{{- $items := list (dict "key" .root.Values.ca.key "path" "ca.crt") }}
{{- with .root.Values.ca.configMap }}
{{- $volumes = append $volumes (dict "name" "ca" "configMap" (dict "name" . "items" $items)) }}
{{- end }}
{{- with .root.Values.ca.secretName }}
{{- $volumes = append $volumes (dict "name" "ca" "secret" (dict "secretName" . "items" $items "defaultMode" 288)) }}
{{- end }}
{{- with concat $volumes .values.extraVolumes }}
volumes: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* The store's credentials of one part. Call with the part's values. */}}
{{- define "millpond.credentials" -}}
{{- with .credentialsSecret }}
envFrom:
  - secretRef:
      name: {{ . }}
{{- end }}
{{- end }}

{{- define "millpond.probes" -}}
livenessProbe:
  httpGet: {path: /healthz, port: admin}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet: {path: /readyz, port: admin}
  periodSeconds: 5
  timeoutSeconds: 5
{{- end }}

{{/* Who may read the admin port: it asks nobody who they are. */}}
{{- define "millpond.monitoring" -}}
{{- if .Values.networkPolicy.monitoring -}}
{{ toYaml .Values.networkPolicy.monitoring }}
{{- else -}}
- podSelector: {}
{{- end -}}
{{- end }}

{{- define "millpond.pullSecrets" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "millpond.placement" -}}
{{- with .nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .topologySpreadConstraints }}
topologySpreadConstraints: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* The Service, budget and network policy of a part whose only port is the admin port. Call with (dict "part" $part "port" 4381
"budget" .Values.consumer.podDisruptionBudget). */}}
{{- define "millpond.unserving" -}}
{{- $name := include "millpond.name" .part }}
{{- $root := .part.root }}
apiVersion: v1
kind: Service
metadata:
  name: {{ $name }}
  namespace: {{ $root.Release.Namespace }}
  labels: {{- include "millpond.labels" .part | nindent 4 }}
    millpond.dev/metrics: "true"
spec:
  clusterIP: None
  # A pod that waits is not ready, but its metrics say for what.
  publishNotReadyAddresses: true
  selector: {{- include "millpond.selector" .part | nindent 4 }}
  ports:
    - {name: admin, port: {{ .port }}, targetPort: admin}
{{- if .budget.enabled }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ $name }}
  namespace: {{ $root.Release.Namespace }}
  labels: {{- include "millpond.labels" .part | nindent 4 }}
spec:
  maxUnavailable: {{ .budget.maxUnavailable }}
  selector:
    matchLabels: {{- include "millpond.selector" .part | nindent 6 }}
{{- end }}
{{- if $root.Values.networkPolicy.enabled }}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: {{ $name }}
  namespace: {{ $root.Release.Namespace }}
  labels: {{- include "millpond.labels" .part | nindent 4 }}
spec:
  podSelector:
    matchLabels: {{- include "millpond.selector" .part | nindent 6 }}
  policyTypes: [Ingress]
  ingress:
    - ports:
        - {port: admin, protocol: TCP}
      from: {{- include "millpond.monitoring" $root | nindent 8 }}
{{- end }}
{{- end }}
