package deploy

import (
	"slices"
	"strings"
	"testing"

	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
)

// Each entry of `consumers` is `consumer` with what the entry gives in its place, also where that is false or empty.
func TestAnEntryOfConsumersInherits(t *testing.T) {
	all := rendered(t, valuesOf(t, "several"))
	sets, budgets := of[*apps.StatefulSet](all), of[*policy.PodDisruptionBudget](all)
	if len(sets) != 3 {
		t.Fatalf("%d consumers, not 3", len(sets))
	}
	for key, wanted := range map[string]struct {
		name, memory, user, database, urls string
		replicas                           int32
		budget                             bool
	}{
		"warehouse": {"warehouse", "1GiB", "millpond", "otel", "http://clickhouse:8123", 2, true},
		"archive":   {"archive", "2GiB", "millpond", "otel", "https://archive-0:8443 https://archive-1:8443", 1, false},
		"acme":      {"acme.prod", "1GiB", "", "acme", "http://clickhouse:8123", 2, true},
	} {
		name := "telemetry-millpond-consumer-" + key
		set := sets[name]
		if set == nil {
			t.Errorf("there is no %s", name)
			continue
		}
		command := line(t, name, set.Spec.Template.Spec)
		var urls []string
		for _, argument := range command.arguments {
			if url, ok := strings.CutPrefix(argument, "--clickhouse="); ok {
				urls = append(urls, url)
			}
		}
		consumer, _ := command.value("--consumer")
		memory, _ := command.value("--memory-limit")
		database, _ := command.value("--database")
		user := command.environment["MILLPOND_CLICKHOUSE_USER"]
		if consumer != wanted.name || memory != wanted.memory || database != wanted.database || user != wanted.user ||
			strings.Join(urls, " ") != wanted.urls || *set.Spec.Replicas != wanted.replicas || (budgets[name] != nil) != wanted.budget {
			t.Errorf("%s: %v as %q, %d replicas, a budget: %v", name, command.arguments, user, *set.Spec.Replicas, budgets[name] != nil)
		}
		if account := of[*core.ServiceAccount](all)[set.Spec.Template.Spec.ServiceAccountName]; account == nil || account.Name != name {
			t.Errorf("%s runs as %q", name, set.Spec.Template.Spec.ServiceAccountName)
		}
	}
}

// A release with one consumer keeps its names and selectors, which Kubernetes does not let an upgrade change.
func TestASingleConsumerIsSelectedAsBefore(t *testing.T) {
	set := of[*apps.StatefulSet](rendered(t, valuesOf(t, "minimal")))["telemetry-millpond-consumer"]
	for name, value := range map[string]string{
		"app.kubernetes.io/name": "millpond", "app.kubernetes.io/instance": release, "app.kubernetes.io/component": "consumer",
	} {
		if set.Spec.Selector.MatchLabels[name] != value || len(set.Spec.Selector.MatchLabels) != 3 {
			t.Errorf("%v", set.Spec.Selector.MatchLabels)
		}
	}
}

// A StatefulSet's controller makes a label of its name and eleven letters, and Kubernetes refuses longer ones than 63.
func TestNamesOfALongReleaseFit(t *testing.T) {
	long := strings.Repeat("long-", 10) + "name"
	for _, name := range []string{"minimal", "several"} {
		values := valuesOf(t, name)
		if name == "several" {
			set(values, "consumers.sixteen--letters", map[string]any{})
		}
		all := renderedAs(t, long, values)
		for name := range of[*apps.StatefulSet](all) {
			if len(name)+len("-0123456789") > 63 {
				t.Errorf("%s has %d letters", name, len(name))
			}
		}
		for name := range of[*core.Service](all) {
			if len(name) > 63 {
				t.Errorf("%s has %d letters", name, len(name))
			}
		}
	}
}

func TestAnIngressLeadsToAPortOfTheService(t *testing.T) {
	all := rendered(t, valuesOf(t, "full"))
	protocols := map[string]string{"otlp-http": "HTTPS", "otlp-grpc": "GRPCS"}
	for name, ingress := range of[*networking.Ingress](all) {
		backend := ingress.Spec.Rules[0].HTTP.Paths[0].Backend.Service
		service := of[*core.Service](all)[backend.Name]
		if service == nil || !slices.ContainsFunc(service.Spec.Ports, func(port core.ServicePort) bool { return port.Name == backend.Port.Name }) {
			t.Errorf("%s: there is no port %s of %s", name, backend.Port.Name, backend.Name)
		}
		protocol := ingress.Annotations["nginx.ingress.kubernetes.io/backend-protocol"]
		if *ingress.Spec.IngressClassName != "nginx" || protocol != protocols[backend.Port.Name] ||
			ingress.Spec.TLS[0].Hosts[0] != ingress.Spec.Rules[0].Host {
			t.Errorf("%s: %+v", name, ingress.Spec)
		}
		delete(protocols, backend.Port.Name)
	}
	if len(protocols) > 0 {
		t.Errorf("nothing leads to %v", protocols)
	}
}

func TestExtrasAreInEveryPart(t *testing.T) {
	for where, template := range templates(rendered(t, valuesOf(t, "full"))) {
		container := template.Spec.Containers[0]
		logs := slices.ContainsFunc(container.Env, func(v core.EnvVar) bool { return v.Name == "MILLPOND_LOG" && v.Value == "debug" })
		proxy := slices.ContainsFunc(container.Env, func(v core.EnvVar) bool { return v.Name == "HTTPS_PROXY" && v.ValueFrom != nil })
		volume := slices.ContainsFunc(template.Spec.Volumes, func(v core.Volume) bool { return v.Name == "scratch" && v.EmptyDir != nil })
		mount := slices.ContainsFunc(container.VolumeMounts, func(m core.VolumeMount) bool { return m.Name == "scratch" && m.MountPath == "/scratch" })
		if !logs || !proxy || !volume || !mount {
			t.Errorf("%s: variables %v and %v, volume %v, mount %v", where, logs, proxy, volume, mount)
		}
		names := map[string]bool{}
		for _, variable := range container.Env {
			if names[variable.Name] {
				t.Errorf("%s has %s twice", where, variable.Name)
			}
			names[variable.Name] = true
		}
	}
}
