{{- define "image" -}}
{{- with .Values.image }}{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}{{ end -}}
{{- end }}

{{- define "labels" -}}
k8s-app: kube-proxy
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- /* The configuration as deploy/base has it, with the values, and over it what `config` has. */}}
{{- define "config.conf" -}}
{{- $nftables := dict "rulesetLayout" .Values.layout "flowtable" .Values.flowtable "counters" .Values.counters }}
{{- $config := dict "apiVersion" "kubeproxy.config.k8s.io/v1alpha1" "kind" "KubeProxyConfiguration" "mode" "nftables" }}
{{- $_ := set $config "clientConnection" (dict "kubeconfig" "/var/lib/kube-proxy/kubeconfig.conf") }}
{{- $_ := set $config "clusterCIDR" .Values.clusterCIDR }}
{{- $_ := set $config "metricsBindAddress" .Values.monitoring.metricsBindAddress }}
{{- $_ := set $config "oomScoreAdj" -997 }}
{{- $_ := set $config "nftables" $nftables }}
{{- toYaml (mergeOverwrite $config (deepCopy .Values.config)) }}
{{- end }}

{{- define "kubeconfig.conf" -}}
apiVersion: v1
kind: Config
clusters:
  - name: default
    cluster:
      certificate-authority: /var/run/secrets/kubernetes.io/serviceaccount/ca.crt
      server: {{ .Values.apiServer }}
contexts:
  - name: default
    context:
      cluster: default
      user: default
current-context: default
users:
  - name: default
    user:
      tokenFile: /var/run/secrets/kubernetes.io/serviceaccount/token
{{- end }}

{{- /* New content has a new name, so that a rolling update gives it to one node after the other. */}}
{{- define "configmap" -}}
{{ .Values.name }}-{{ printf "%s\n%s" (include "config.conf" .) (include "kubeconfig.conf" .) | sha256sum | trunc 10 }}
{{- end }}
