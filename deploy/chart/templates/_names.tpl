{{/* Labels of every object; the argument is (list . COMPONENT). */}}
{{- define "hotbay.labels" -}}
{{- $root := index . 0 -}}
{{ include "hotbay.selector" . }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: hotbay
{{- end }}

{{/* Labels that never change, by which pods are found. */}}
{{- define "hotbay.selector" -}}
app.kubernetes.io/name: hotbay
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- define "hotbay.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ with .Values.image.digest }}@{{ . }}{{ end }}
{{- end }}

{{/* Where agents find the controllers. A fixed address of the service needs no DNS. */}}
{{- define "hotbay.address" -}}
{{- $ip := .Values.service.clusterIP -}}
{{- if .Values.node.controllerAddress -}}
{{ .Values.node.controllerAddress }}
{{- else if contains ":" $ip -}}
[{{ $ip }}]:7443
{{- else if $ip -}}
{{ $ip }}:7443
{{- else -}}
hotbay-controller.{{ .Release.Namespace }}.svc:7443
{{- end -}}
{{- end }}

{{/* For a container that needs no rights on its machine. */}}
{{- define "hotbay.confined" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* The same on a machine's folders, where SELinux keeps a container that is not privileged from what a privileged one
     has made. The argument is the root. */}}
{{- define "hotbay.confined-on-host" -}}
{{ include "hotbay.confined" . }}
{{- with .Values.node.seLinuxOptions }}
seLinuxOptions:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* The head of a sidecar: the argument is (list . KEY NAME CONFINED), the last being one of the two above. */}}
{{- define "hotbay.sidecar" -}}
{{- $root := index . 0 -}}
{{- $one := index $root.Values.sidecars (index . 1) -}}
- name: {{ index . 2 }}
  image: {{ $one.repository }}:{{ $one.tag }}{{ with $one.digest }}@{{ . }}{{ end }}
  imagePullPolicy: {{ $root.Values.sidecars.pullPolicy }}
  securityContext:
    {{- include (index . 3) $root | nindent 4 }}
  {{- with $one.resources }}
  resources:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}
