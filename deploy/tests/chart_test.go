package deploy

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
	apps "k8s.io/api/apps/v1"
	autoscaling "k8s.io/api/autoscaling/v2"
	batch "k8s.io/api/batch/v1"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/kubernetes/scheme"
)

const (
	chartFolder = "../helm/millpond"
	release     = "telemetry"
	namespace   = "observability"
)

// The values that the chart is rendered with: ci/<name>-values.yaml.
var cases = []string{"minimal", "full", "several"}

func loadChart(t *testing.T) *chart.Chart {
	t.Helper()
	loaded, err := loader.Load(chartFolder)
	if err != nil {
		t.Fatal(err)
	}
	return loaded
}

func valuesOf(t *testing.T, name string) map[string]any {
	t.Helper()
	values, err := chartutil.ReadValues([]byte(read(t, chartFolder, "ci", name+"-values.yaml")))
	if err != nil {
		t.Fatal(err)
	}
	return values
}

// set changes one value, named by its path.
func set(values map[string]any, path string, value any) {
	names := strings.Split(path, ".")
	for _, name := range names[:len(names)-1] {
		inner, ok := values[name].(map[string]any)
		if !ok {
			inner = map[string]any{}
			values[name] = inner
		}
		values = inner
	}
	values[names[len(names)-1]] = value
}

// render gives the text of each template, as `helm template` would. Values are checked against the schema.
func render(t *testing.T, values map[string]any) (map[string]string, error) {
	t.Helper()
	return renderAs(t, release, values)
}

// renderAs is render for a release of another name.
func renderAs(t *testing.T, name string, values map[string]any) (map[string]string, error) {
	t.Helper()
	options := chartutil.ReleaseOptions{Name: name, Namespace: namespace, Revision: 1, IsInstall: true}
	all, err := chartutil.ToRenderValues(loadChart(t), values, options, chartutil.DefaultCapabilities)
	if err != nil {
		return nil, err
	}
	return engine.Render(loadChart(t), all)
}

// The objects of a release, each decoded into its own Go type; a field that the type lacks is an error.
type objects []runtime.Object

func decode(t *testing.T, files map[string]string) objects {
	t.Helper()
	known := runtime.NewScheme()
	if err := scheme.AddToScheme(known); err != nil {
		t.Fatal(err)
	}
	if err := monitoring.AddToScheme(known); err != nil {
		t.Fatal(err)
	}
	decoder := serializer.NewCodecFactory(known, serializer.EnableStrict).UniversalDeserializer()
	var all objects
	for _, file := range slices.Sorted(maps.Keys(files)) {
		if strings.HasSuffix(file, "NOTES.txt") {
			continue
		}
		for _, document := range strings.Split(files[file], "\n---\n") {
			if strings.TrimSpace(document) == "" {
				continue
			}
			object, _, err := decoder.Decode([]byte(document), nil, nil)
			if err != nil {
				t.Fatalf("%s: %v\n%s", file, err, document)
			}
			all = append(all, object)
		}
	}
	return all
}

func rendered(t *testing.T, values map[string]any) objects {
	t.Helper()
	return renderedAs(t, release, values)
}

func renderedAs(t *testing.T, name string, values map[string]any) objects {
	t.Helper()
	files, err := renderAs(t, name, values)
	if err != nil {
		t.Fatal(err)
	}
	return decode(t, files)
}

// of gives the objects of one type, by name.
func of[T interface {
	runtime.Object
	meta.Object
}](all objects) map[string]T {
	found := map[string]T{}
	for _, object := range all {
		if one, ok := object.(T); ok {
			found[one.GetName()] = one
		}
	}
	return found
}

// templates gives every pod template, by its owner.
func templates(all objects) map[string]core.PodTemplateSpec {
	found := map[string]core.PodTemplateSpec{}
	for name, one := range of[*apps.Deployment](all) {
		found["deployment "+name] = one.Spec.Template
	}
	for name, one := range of[*apps.StatefulSet](all) {
		found["statefulset "+name] = one.Spec.Template
	}
	for name, one := range of[*batch.CronJob](all) {
		found["cronjob "+name] = one.Spec.JobTemplate.Spec.Template
	}
	return found
}

// line is the command line of a pod's only container.
func line(t *testing.T, where string, pod core.PodSpec) commandLine {
	t.Helper()
	if len(pod.Containers) != 1 {
		t.Fatalf("%s has %d containers", where, len(pod.Containers))
	}
	environment := map[string]string{}
	for _, variable := range pod.Containers[0].Env {
		environment[variable.Name] = variable.Value
	}
	return commandLine{where, pod.Containers[0].Args, environment}
}

func everyCase(t *testing.T, test func(t *testing.T, all objects)) {
	for _, name := range cases {
		t.Run(name, func(t *testing.T) { test(t, rendered(t, valuesOf(t, name))) })
	}
}

func TestTheChartPassesHelmLint(t *testing.T) {
	for _, name := range cases {
		for _, message := range lint.All(chartFolder, valuesOf(t, name), namespace, true).Messages {
			if message.Severity > support.InfoSev {
				t.Errorf("%s: %s: %v", name, message.Path, message.Err)
			}
		}
	}
}

func TestEveryPartIsRendered(t *testing.T) {
	kinds := func(all objects) []string {
		var found []string
		for _, object := range all {
			found = append(found, object.GetObjectKind().GroupVersionKind().Kind)
		}
		slices.Sort(found)
		return found
	}
	want := []string{
		"Deployment", "NetworkPolicy", "NetworkPolicy", "PodDisruptionBudget", "PodDisruptionBudget", "Secret", "Service", "Service", "Service",
		"ServiceAccount", "ServiceAccount", "StatefulSet",
	}
	if found := kinds(rendered(t, valuesOf(t, "minimal"))); !slices.Equal(found, want) {
		t.Errorf("minimal: %v", found)
	}
	// The consumer's account and the certificate are not the chart's there.
	want = slices.DeleteFunc(want, func(kind string) bool { return kind == "Secret" })
	want = append(want, "ConfigMap", "CronJob", "HorizontalPodAutoscaler", "Ingress", "Ingress", "NetworkPolicy", "ServiceMonitor")
	// The bridge.
	want = append(want, "ConfigMap", "Deployment", "NetworkPolicy", "PodDisruptionBudget", "Service", "ServiceAccount")
	slices.Sort(want)
	if found := kinds(rendered(t, valuesOf(t, "full"))); !slices.Equal(found, want) {
		t.Errorf("full: %v", found)
	}
}

func TestNamesAreTakenByKubernetes(t *testing.T) {
	everyCase(t, func(t *testing.T, all objects) {
		seen := map[string]bool{}
		for _, object := range all {
			about := object.(meta.Object)
			kind := object.GetObjectKind().GroupVersionKind().Kind
			if seen[kind+about.GetName()] {
				t.Errorf("two objects are %s %s", kind, about.GetName())
			}
			seen[kind+about.GetName()] = true
			if about.GetNamespace() != namespace {
				t.Errorf("%s %s is in namespace %q", kind, about.GetName(), about.GetNamespace())
			}
			for _, wrong := range validation.IsDNS1035Label(about.GetName()) {
				t.Errorf("%s %s: %s", kind, about.GetName(), wrong)
			}
			for key, value := range about.GetLabels() {
				for _, wrong := range append(validation.IsQualifiedName(key), validation.IsValidLabelValue(value)...) {
					t.Errorf("%s %s: label %s=%s: %s", kind, about.GetName(), key, value, wrong)
				}
			}
		}
		for where, template := range templates(all) {
			for _, port := range template.Spec.Containers[0].Ports {
				for _, wrong := range validation.IsValidPortName(port.Name) {
					t.Errorf("%s: port %s: %s", where, port.Name, wrong)
				}
			}
		}
	})
}

func TestEverySelectorSelectsSomething(t *testing.T) {
	everyCase(t, func(t *testing.T, all objects) {
		pods := templates(all)
		selected := func(what string, selector map[string]string) (found []core.PodTemplateSpec) {
			for _, pod := range pods {
				if labels.SelectorFromSet(selector).Matches(labels.Set(pod.Labels)) {
					found = append(found, pod)
				}
			}
			if len(found) != 1 {
				t.Errorf("%s selects %d pods", what, len(found))
			}
			return found
		}
		hasPort := func(pod core.PodTemplateSpec, name string) bool {
			return slices.ContainsFunc(pod.Spec.Containers[0].Ports, func(p core.ContainerPort) bool { return p.Name == name })
		}
		for name, one := range of[*apps.Deployment](all) {
			selected("deployment "+name, one.Spec.Selector.MatchLabels)
		}
		for name, one := range of[*apps.StatefulSet](all) {
			selected("statefulset "+name, one.Spec.Selector.MatchLabels)
			if service := of[*core.Service](all)[one.Spec.ServiceName]; service == nil || service.Spec.ClusterIP != "None" {
				t.Errorf("statefulset %s: %q is no headless service", name, one.Spec.ServiceName)
			}
		}
		for name, one := range of[*policy.PodDisruptionBudget](all) {
			selected("budget "+name, one.Spec.Selector.MatchLabels)
		}
		for name, one := range of[*networking.NetworkPolicy](all) {
			for _, pod := range selected("policy "+name, one.Spec.PodSelector.MatchLabels) {
				opened := 0
				for _, rule := range one.Spec.Ingress {
					for _, port := range rule.Ports {
						opened++
						if !hasPort(pod, port.Port.String()) {
							t.Errorf("policy %s: the pod has no port %s", name, port.Port)
						}
					}
				}
				if opened != len(pod.Spec.Containers[0].Ports) {
					t.Errorf("policy %s opens %d ports of %d", name, opened, len(pod.Spec.Containers[0].Ports))
				}
			}
		}
		for name, service := range of[*core.Service](all) {
			for _, pod := range selected("service "+name, service.Spec.Selector) {
				for _, port := range service.Spec.Ports {
					if !hasPort(pod, port.TargetPort.String()) {
						t.Errorf("service %s: the pod has no port %s", name, port.TargetPort.String())
					}
				}
			}
		}
		for name, scaler := range of[*autoscaling.HorizontalPodAutoscaler](all) {
			deployment := of[*apps.Deployment](all)[scaler.Spec.ScaleTargetRef.Name]
			if deployment == nil {
				t.Errorf("autoscaler %s: there is no deployment %s", name, scaler.Spec.ScaleTargetRef.Name)
			} else if deployment.Spec.Replicas != nil {
				t.Errorf("deployment %s sets replicas against its autoscaler", deployment.Name)
			}
		}
		for name, monitor := range of[*monitoring.ServiceMonitor](all) {
			var scraped []string
			for _, service := range of[*core.Service](all) {
				if labels.SelectorFromSet(monitor.Spec.Selector.MatchLabels).Matches(labels.Set(service.Labels)) {
					scraped = append(scraped, service.Name)
					if service.Spec.Ports[0].Name != monitor.Spec.Endpoints[0].Port {
						t.Errorf("monitor %s: service %s has no port %s", name, service.Name, monitor.Spec.Endpoints[0].Port)
					}
				}
			}
			if wanted := len(of[*apps.Deployment](all)) + len(of[*apps.StatefulSet](all)); len(scraped) != wanted {
				t.Errorf("monitor %s scrapes %v, and not gateways, bridges and each consumer once", name, scraped)
			}
		}
		accounts := of[*core.ServiceAccount](all)
		for where, pod := range pods {
			if name := pod.Spec.ServiceAccountName; accounts[name] == nil && name != "consumer" {
				t.Errorf("%s: there is no service account %q", where, name)
			}
		}
	})
}

func TestPodsHaveNoRightsThatTheyDoNotNeed(t *testing.T) {
	everyCase(t, func(t *testing.T, all objects) {
		for where, template := range templates(all) {
			pod, container := template.Spec, template.Spec.Containers[0]
			if s := pod.SecurityContext; s == nil || !*s.RunAsNonRoot || *s.RunAsUser == 0 || *s.RunAsGroup == 0 ||
				s.SeccompProfile.Type != core.SeccompProfileTypeRuntimeDefault {
				t.Errorf("%s: pod %+v", where, s)
			}
			if s := container.SecurityContext; s == nil || *s.AllowPrivilegeEscalation || !*s.ReadOnlyRootFilesystem ||
				!slices.Equal(s.Capabilities.Drop, []core.Capability{"ALL"}) || len(s.Capabilities.Add) > 0 {
				t.Errorf("%s: container %+v", where, s)
			}
			if pod.HostNetwork || pod.HostPID || pod.HostIPC || *pod.AutomountServiceAccountToken {
				t.Errorf("%s: shares with its host, or has a token", where)
			}
			if pod.EnableServiceLinks == nil || *pod.EnableServiceLinks {
				t.Errorf("%s: Services' variables begin with MILLPOND_ too", where)
			}
		}
	})
}

func TestTheProgramTakesTheChartsCommandLines(t *testing.T) {
	everyCase(t, func(t *testing.T, all objects) {
		for where, template := range templates(all) {
			line(t, where, template.Spec).check(t)
		}
	})
}

func TestPortsAreThoseThatAreListenedOn(t *testing.T) {
	everyCase(t, func(t *testing.T, all objects) {
		flags := map[string]string{"otlp-grpc": "--listen", "otlp-http": "--listen-http", "kafka": "--listen-kafka", "admin": "--admin", "peers": "--peer-listen"}
		for where, template := range templates(all) {
			command, container := line(t, where, template.Spec), template.Spec.Containers[0]
			for _, port := range container.Ports {
				if listened := command.port(flags[port.Name]); listened != fmt.Sprint(port.ContainerPort) {
					t.Errorf("%s: port %s is %d, %s is %s", where, port.Name, port.ContainerPort, flags[port.Name], listened)
				}
			}
			if command.arguments[0] == "gc" {
				continue
			}
			for path, probe := range map[string]*core.Probe{"/healthz": container.LivenessProbe, "/readyz": container.ReadinessProbe} {
				if probe == nil || probe.HTTPGet.Path != path || probe.HTTPGet.Port.String() != "admin" {
					t.Errorf("%s: the probe of %s is %+v", where, path, probe)
				}
			}
		}
		for name, service := range of[*core.Service](all) {
			for _, port := range service.Spec.Ports {
				for where, template := range templates(all) {
					if !labels.SelectorFromSet(service.Spec.Selector).Matches(labels.Set(template.Labels)) {
						continue
					}
					if listened := line(t, where, template.Spec).port(flags[port.Name]); listened != fmt.Sprint(port.Port) {
						t.Errorf("service %s: port %s is %d, the pod's is %s", name, port.Name, port.Port, listened)
					}
				}
			}
		}
	})
}

func TestAPodHasTheMemoryThatItsProgramMayTake(t *testing.T) {
	everyCase(t, func(t *testing.T, all objects) {
		for where, template := range templates(all) {
			resources := template.Spec.Containers[0].Resources
			limit := resources.Limits.Memory().Value()
			if limit == 0 || limit != resources.Requests.Memory().Value() {
				t.Errorf("%s: memory is requested with %v and limited to %v", where, resources.Requests.Memory(), resources.Limits.Memory())
			}
			command := line(t, where, template.Spec)
			if command.arguments[0] == "gc" {
				continue
			}
			if needed := residentMax(command.memory(t)); limit < needed {
				t.Errorf("%s: %d bytes are allowed and %d may be needed", where, limit, needed)
			}
		}
	})
}

func TestAPodIsGivenTheTimeThatItsProgramNeedsToStop(t *testing.T) {
	everyCase(t, func(t *testing.T, all objects) {
		for where, template := range templates(all) {
			command := line(t, where, template.Spec)
			if command.arguments[0] == "gc" {
				continue
			}
			needed := command.stopping(t)
			if hook := template.Spec.Containers[0].Lifecycle; hook != nil {
				needed += time.Duration(hook.PreStop.Sleep.Seconds) * time.Second
			}
			if grace := time.Duration(*template.Spec.TerminationGracePeriodSeconds) * time.Second; grace <= needed {
				t.Errorf("%s: a grace of %v, and it may take %v", where, grace, needed)
			}
		}
	})
}

func TestTheAutoscalersMetricIsOneAndItsTargetCanBeReached(t *testing.T) {
	all := rendered(t, valuesOf(t, "full"))
	for _, scaler := range of[*autoscaling.HorizontalPodAutoscaler](all) {
		held := scaler.Spec.Metrics[0].Pods
		if !strings.Contains(read(t, root, "design", "producer.md"), "`"+held.Metric.Name+"`") {
			t.Errorf("%s is not documented", held.Metric.Name)
		}
		deployment := of[*apps.Deployment](all)[scaler.Spec.ScaleTargetRef.Name]
		budget := line(t, deployment.Name, deployment.Spec.Template.Spec).memory(t) / 5 * 4
		if target := held.Target.AverageValue.Value(); target <= 0 || target >= budget {
			t.Errorf("the target is %d of a budget of %d", target, budget)
		}
	}
}

func TestTheInstanceIsThePodsName(t *testing.T) {
	everyCase(t, func(t *testing.T, all objects) {
		for name, set := range of[*apps.StatefulSet](all) {
			pod := set.Spec.Template.Spec
			if instance, _ := line(t, name, pod).value("--instance"); instance != "$(POD_NAME)" {
				t.Errorf("%s: --instance is %q", name, instance)
			}
			first := pod.Containers[0].Env[0]
			if first.Name != "POD_NAME" || first.ValueFrom.FieldRef.FieldPath != "metadata.name" {
				t.Errorf("%s: POD_NAME is %+v", name, first)
			}
		}
	})
}

func TestTelemetryGoesToTheConfiguredEndpoint(t *testing.T) {
	told := func(pod core.PodSpec) map[string]core.EnvVar {
		told := make(map[string]core.EnvVar)
		for _, variable := range pod.Containers[0].Env {
			if strings.HasPrefix(variable.Name, "MILLPOND_OTLP_") {
				told[variable.Name] = variable
			}
		}
		return told
	}
	for name, template := range templates(rendered(t, valuesOf(t, "minimal"))) {
		if found := told(template.Spec); len(found) > 0 {
			t.Errorf("%s pushes unasked: %v", name, found)
		}
	}
	full, pushing := rendered(t, valuesOf(t, "full")), 0
	for name, template := range templates(full) {
		found := told(template.Spec)
		if len(found) == 0 {
			continue
		}
		pushing++
		secret, wanted := found["MILLPOND_OTLP_HEADERS"].ValueFrom, [2]string{"otlp-gateway", "headers"}
		switch {
		case strings.HasPrefix(name, "statefulset "):
			wanted = [2]string{"otlp-consumer", "consumer"}
		case strings.HasSuffix(name, "-bridge"):
			wanted = [2]string{"otlp-bridge", "headers"}
		}
		if found["MILLPOND_OTLP_ENDPOINT"].Value != "http://collector.observability:4318" || found["MILLPOND_OTLP_TRACES"].Value != "0.05" ||
			secret == nil || [2]string{secret.SecretKeyRef.Name, secret.SecretKeyRef.Key} != wanted {
			t.Errorf("%s: %v", name, found)
		}
	}
	if wanted := len(of[*apps.Deployment](full)) + len(of[*apps.StatefulSet](full)); pushing != wanted {
		t.Errorf("%d push, not %d", pushing, wanted)
	}
}

func TestAJobThatCollectsTakesTheCollectorFromTheConsumers(t *testing.T) {
	collects := func(all objects) (consumer, job bool) {
		for _, set := range of[*apps.StatefulSet](all) {
			interval, given := line(t, set.Name, set.Spec.Template.Spec).value("--gc-interval")
			consumer = !given || interval != "0s"
		}
		return consumer, len(of[*batch.CronJob](all)) == 1
	}
	if consumer, job := collects(rendered(t, valuesOf(t, "minimal"))); !consumer || job {
		t.Errorf("minimal: consumer %v, job %v", consumer, job)
	}
	if consumer, job := collects(rendered(t, valuesOf(t, "full"))); consumer || !job {
		t.Errorf("full: consumer %v, job %v", consumer, job)
	}
}

// Collectors in another namespace ask the leader of the gateways for their commits.
func TestTheGivenCollectorsReachTheLeader(t *testing.T) {
	for values, want := range map[string]int{"minimal": 2, "full": 3} {
		found := 0
		for _, policy := range of[*networking.NetworkPolicy](rendered(t, valuesOf(t, values))) {
			for _, rule := range policy.Spec.Ingress {
				if rule.Ports[0].Port.String() == "peers" {
					found = len(rule.From)
				}
			}
		}
		if found != want {
			t.Errorf("%s: the port takes %d kinds of peers instead of %d", values, found, want)
		}
	}
}

// Consumers ask the leader for news of commits.
func TestConsumersReachTheLeader(t *testing.T) {
	everyCase(t, func(t *testing.T, all objects) {
		for name, one := range of[*networking.NetworkPolicy](all) {
			for _, rule := range one.Spec.Ingress {
				if rule.Ports[0].Port.String() != "peers" {
					continue
				}
				for where, pod := range templates(all) {
					is := pod.Labels["app.kubernetes.io/component"]
					reaches := slices.ContainsFunc(rule.From, func(peer networking.NetworkPolicyPeer) bool {
						return peer.NamespaceSelector == nil && peer.PodSelector != nil &&
							labels.SelectorFromSet(peer.PodSelector.MatchLabels).Matches(labels.Set(pod.Labels))
					})
					if reaches != (is == "gateway" || is == "consumer") {
						t.Errorf("policy %s: %s reaches the port: %v", name, where, reaches)
					}
				}
			}
		}
	})
}

// The admin port asks nobody who they are. The port for other producers does, but nobody else has business there.
func TestNotEverybodyReachesTheInnerPorts(t *testing.T) {
	everyCase(t, func(t *testing.T, all objects) {
		policies, pods := of[*networking.NetworkPolicy](all), templates(all)
		if len(policies) != len(pods) {
			t.Errorf("%d policies for %d parts", len(policies), len(pods))
		}
		for name, one := range policies {
			for _, rule := range one.Spec.Ingress {
				for _, port := range rule.Ports {
					inner := port.Port.String() == "admin" || port.Port.String() == "peers"
					if inner && len(rule.From) == 0 {
						t.Errorf("policy %s: everybody reaches the port %s", name, port.Port.String())
					}
				}
			}
		}
	})
}
