{{- define "laneway.labels" -}}
app.kubernetes.io/name: laneway
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "laneway.image" -}}
{{- $image := get .root.Values.images .which -}}
{{- $tag := $image.tag | default .root.Chart.AppVersion -}}
{{ $image.repository }}{{ ternary "@" ":" (ne $image.digest "") }}{{ $image.digest | default $tag }}
{{- end }}

{{- /* A value of TOML on one line. Helm reads every number as a float: whole ones are written as integers. */ -}}
{{- define "laneway.tomlValue" -}}
{{- if kindIs "map" . -}}
{ {{- range $i, $key := keys . | sortAlpha }}{{ if $i }},{{ end }} {{ $key }} = {{/* */ -}}
{{ include "laneway.tomlValue" (get $ $key) }}{{ end }} }
{{- else if kindIs "slice" . -}}
[{{ range $i, $item := . }}{{ if $i }}, {{ end }}{{ include "laneway.tomlValue" $item }}{{ end }}]
{{- else if kindIs "string" . -}}
{{ toJson . }}
{{- else if kindIs "float64" . -}}
{{ if eq (floor .) . }}{{ int64 . }}{{ else }}{{ . }}{{ end }}
{{- else -}}
{{ . }}
{{- end -}}
{{- end }}

{{- /* Lists first: below the first [section] they would belong to it. */ -}}
{{- define "laneway.toml" -}}
{{- range $key := keys . | sortAlpha }}{{ $value := get $ $key }}{{ if not (kindIs "map" $value) }}
{{ $key }} = {{ include "laneway.tomlValue" $value }}
{{- end }}{{ end }}
{{- range $key := keys . | sortAlpha }}{{ $value := get $ $key }}{{ if kindIs "map" $value }}

[{{ $key }}]
{{- range $name := keys $value | sortAlpha }}
{{ $name }} = {{ include "laneway.tomlValue" (get $value $name) }}
{{- end }}{{ end }}{{ end }}
{{- end }}

{{- /* values.config with what the chart itself decides, as YAML. */ -}}
{{- define "laneway.config" -}}
{{- $tls := "/etc/laneway/tls" -}}
{{- $service := dict "service" (printf "%s-engines" .Release.Name) "port" "frames" -}}
{{- $own := dict
  "gateway" (dict "host" "0.0.0.0" "port" 8080 "data_dir" "/var/lib/laneway" "models_dir" "/models"
    "secret_file" "/etc/laneway/secrets/server.secret" "metrics_address" "0.0.0.0:9464")
  "engine" (dict "socket" "/var/lib/laneway/engine.sock" "listen" "0.0.0.0:7801")
  "fleet" (dict "driver" "kubernetes" "kubernetes" $service "certificate_file" (printf "%s/tls.crt" $tls)
    "key_file" (printf "%s/tls.key" $tls) "authority_file" (printf "%s/ca.crt" $tls)) -}}
{{- mustMergeOverwrite (mustDeepCopy .Values.config) $own | toYaml -}}
{{- end }}

{{- /* Seconds from the preStop hook to the end of a gateway: `laneway drain gateway` waits for linger_s +
shutdown_grace_s + 5; the rest is margin. Laneway's defaults are used where values.config has none. */ -}}
{{- define "laneway.gatewayStop" -}}
{{- $gateway := .Values.config.gateway | default dict -}}
{{- $linger := ternary $gateway.linger_s 5.0 (hasKey $gateway "linger_s") -}}
{{- $grace := ternary $gateway.shutdown_grace_s 30.0 (hasKey $gateway "shutdown_grace_s") -}}
{{- add (ceil (addf $linger $grace)) 15 -}}
{{- end }}

{{- define "laneway.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "laneway.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- /* Where pods run. `root`, and `part`: .Values.gateway or .Values.engine. Without service links: for a Service that
is called laneway, Kubernetes would set LANEWAY_PORT, which Laneway reads as its own port. */ -}}
{{- define "laneway.podPlace" -}}
enableServiceLinks: false
{{- with .root.Values.images.pullSecrets }}
imagePullSecrets:
{{- range . }}
  - name: {{ . }}
{{- end }}
{{- end }}
{{- with .part.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .part.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .part.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "laneway.claim" -}}
volumeClaimTemplates:
  - metadata: {name: data}
    spec:
      accessModes: [ReadWriteOnce]
      {{- with .storageClass }}
      storageClassName: {{ . }}
      {{- end }}
      resources: {requests: {storage: {{ .size }}}}
{{- end }}
