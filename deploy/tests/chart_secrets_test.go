package deploy

import (
	"crypto/tls"
	"crypto/x509"
	"maps"
	"slices"
	"strings"
	"testing"

	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
)

func TestASecretOfTheFilesIsWhereTheFlagsLook(t *testing.T) {
	flags := map[string][]string{
		"gateway": {"--tls-cert", "--tls-key", "--tls-client-ca", "--tokens", "--kafka-topics"},
		"bridge":  {"--sasl-password-file", "--kafka-topics"},
	}
	for _, deployment := range of[*apps.Deployment](rendered(t, valuesOf(t, "full"))) {
		pod := deployment.Spec.Template.Spec
		command := line(t, deployment.Name, pod)
		for _, flag := range flags[command.arguments[0]] {
			file, given := command.value(flag)
			mounted := slices.ContainsFunc(pod.Containers[0].VolumeMounts, func(mount core.VolumeMount) bool {
				return strings.HasPrefix(file, mount.MountPath+"/") && mount.ReadOnly
			})
			if !given || !mounted {
				t.Errorf("%s %s: no volume has it", flag, file)
			}
		}
		if slices.Contains(command.arguments, "--insecure") {
			t.Error("--insecure beside a certificate")
		}
	}
}

// secretsOf names the Secrets that a pod can read.
func secretsOf(pod core.PodSpec) map[string]bool {
	found := map[string]bool{}
	for _, container := range pod.Containers {
		for _, from := range container.EnvFrom {
			found[from.SecretRef.Name] = true
		}
		for _, variable := range container.Env {
			if variable.ValueFrom != nil && variable.ValueFrom.SecretKeyRef != nil {
				found[variable.ValueFrom.SecretKeyRef.Name] = true
			}
		}
	}
	for _, volume := range pod.Volumes {
		if volume.Secret != nil {
			found[volume.Secret.SecretName] = true
		}
	}
	return found
}

// A CA is public, so all parts may share its Secret.
const sharedCA = "company-ca"

func TestEachPartHasItsOwnSecrets(t *testing.T) {
	owned := func(name string) map[string]string {
		owner := map[string]string{}
		for where, template := range templates(rendered(t, valuesOf(t, name))) {
			for secret := range secretsOf(template.Spec) {
				if other, taken := owner[secret]; taken && secret != sharedCA {
					t.Errorf("%s and %s both read the Secret %s", where, other, secret)
				}
				owner[secret] = where
			}
		}
		return owner
	}
	for name, wanted := range map[string]map[string]string{
		"full": {
			"millpond-s3-gateway": "deployment", "millpond-s3-consumer": "statefulset", "millpond-s3-gc": "cronjob",
			"clickhouse": "statefulset", "millpond-tokens": "deployment", "millpond-tls": "deployment",
			"millpond-s3-bridge": "deployment telemetry-millpond-bridge", "kafka-bridge": "deployment telemetry-millpond-bridge",
			"otlp-bridge": "deployment telemetry-millpond-bridge", "proxy-bridge": "deployment telemetry-millpond-bridge",
			"otlp-gateway": "deployment", "otlp-consumer": "statefulset",
			"proxy-gateway": "deployment", "proxy-consumer": "statefulset", "proxy-gc": "cronjob",
		},
		"several": {
			"s3-warehouse": "statefulset telemetry-millpond-consumer-warehouse", "s3-archive": "statefulset telemetry-millpond-consumer-archive",
			"clickhouse-warehouse": "statefulset telemetry-millpond-consumer-warehouse",
			"clickhouse-archive":   "statefulset telemetry-millpond-consumer-archive",
			"otlp-warehouse":       "statefulset telemetry-millpond-consumer-warehouse",
		},
	} {
		owner := owned(name)
		for secret, part := range wanted {
			if !strings.HasPrefix(owner[secret]+" ", part+" ") {
				t.Errorf("%s: the Secret %s is %q's, not the %s's", name, secret, owner[secret], part)
			}
			delete(owner, secret)
		}
		delete(owner, sharedCA)
		if len(owner) > 0 {
			t.Errorf("%s: nobody expects %v", name, owner)
		}
	}
}

// Without any value for it, the gateways serve TLS with a certificate that clients can verify.
func TestAGeneratedCertificateIsThatOfTheService(t *testing.T) {
	all := rendered(t, valuesOf(t, "minimal"))
	secret := of[*core.Secret](all)["telemetry-millpond-gateway-tls"]
	if secret == nil || secret.Type != core.SecretTypeTLS {
		t.Fatalf("%+v", secret)
	}
	pair, err := tls.X509KeyPair(secret.Data["tls.crt"], secret.Data["tls.key"])
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(secret.Data["ca.crt"]) {
		t.Fatal("ca.crt has no certificate")
	}
	service := of[*core.Service](all)["telemetry-millpond-gateway"]
	for _, name := range []string{service.Name, service.Name + "." + namespace, service.Name + "." + namespace + ".svc.cluster.local", "localhost"} {
		if _, err := pair.Leaf.Verify(x509.VerifyOptions{DNSName: name, Roots: roots}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	deployment := of[*apps.Deployment](all)[service.Name].Spec.Template.Spec
	if !secretsOf(deployment)[secret.Name] {
		t.Error("the gateway does not mount it")
	}
	if slices.Contains(line(t, "gateway", deployment).arguments, "--insecure") {
		t.Error("--insecure beside a certificate")
	}
}

// What only the gateway needs stays out of the consumers' pods, and the key of the CA out of all.
func TestAGeneratedSecretHasNoKeyOfTheCA(t *testing.T) {
	for _, secret := range of[*core.Secret](rendered(t, valuesOf(t, "minimal"))) {
		if keys := slices.Sorted(maps.Keys(secret.Data)); !slices.Equal(keys, []string{"ca.crt", "tls.crt", "tls.key"}) {
			t.Errorf("%s has %v", secret.Name, keys)
		}
	}
	for _, name := range []string{"full", "several"} {
		if made := of[*core.Secret](rendered(t, valuesOf(t, name))); len(made) > 0 {
			t.Errorf("%s: %v", name, slices.Collect(maps.Keys(made)))
		}
	}
}

// tests/test_private_ca.py shows that the program trusts the CAs in the folder of SSL_CERT_DIR.
func TestAPrivateCAIsWhereTheProgramLooks(t *testing.T) {
	for name, wanted := range map[string]bool{"minimal": false, "full": true, "several": true} {
		for where, template := range templates(rendered(t, valuesOf(t, name))) {
			folder := line(t, where, template.Spec).environment["SSL_CERT_DIR"]
			mounted := slices.ContainsFunc(template.Spec.Containers[0].VolumeMounts, func(mount core.VolumeMount) bool {
				return mount.Name == "ca" && mount.MountPath == folder && mount.ReadOnly
			})
			volume := slices.ContainsFunc(template.Spec.Volumes, func(volume core.Volume) bool {
				return volume.Name == "ca" && (volume.Secret != nil && volume.Secret.Items[0].Key == "bundle.pem" ||
					volume.ConfigMap != nil && volume.ConfigMap.Items[0].Key == "ca.crt")
			})
			if mounted != wanted || volume != wanted || (folder != "") != wanted {
				t.Errorf("%s: %s: folder %q, mounted %v, volume %v", name, where, folder, mounted, volume)
			}
		}
	}
}
