package deploy

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/BurntSushi/toml"
)

// debian returns the metadata of the Debian package.
func debian(t *testing.T) (deb struct {
	Depends string
	Assets  [][]string
	Units   struct {
		Enable, Start bool
		Restart       bool `toml:"restart-after-upgrade"`
	} `toml:"systemd-units"`
	Scripts string `toml:"maintainer-scripts"`
}) {
	t.Helper()
	var manifest struct {
		Package struct{ Metadata struct{ Deb toml.Primitive } }
	}
	meta, err := toml.DecodeFile(filepath.Join(root, "cli", "Cargo.toml"), &manifest)
	if err != nil {
		t.Fatal(err)
	}
	if err := meta.PrimitiveDecode(manifest.Package.Metadata.Deb, &deb); err != nil {
		t.Fatal(err)
	}
	return deb
}

// The units have no user, so systemd uses the one with the unit's name if it exists.
func TestThePackageHasAUserForEachUnit(t *testing.T) {
	var users, want []string
	for _, line := range regexp.MustCompile(`(?m)^u (\S+) - "`).FindAllStringSubmatch(read(t, "../debian/millpond.sysusers"), -1) {
		users = append(users, line[1])
	}
	for _, unit := range units {
		want = append(want, strings.TrimSuffix(unit, ".service"))
		if user := setting(read(t, "../systemd", unit), "User"); user != "" {
			t.Errorf("%s has the user %s, which the package does not make", unit, user)
		}
	}
	slices.Sort(users)
	slices.Sort(want)
	if !slices.Equal(users, want) {
		t.Errorf("the package makes the users %v, and the units need %v", users, want)
	}
}

func TestThePackageHasTheFilesThatTheUnitsName(t *testing.T) {
	deb := debian(t)
	installed := map[string]bool{}
	for _, asset := range deb.Assets {
		source, destination := asset[0], asset[1]
		// scripts/dist.sh puts these there.
		names := []string{source}
		if !strings.HasPrefix(source, "target/release/") {
			var err error
			if names, err = filepath.Glob(filepath.Join(root, "cli", source)); err != nil || len(names) == 0 {
				t.Errorf("the package has %s, which does not exist", source)
			}
		}
		for _, name := range names {
			if strings.HasSuffix(destination, "/") {
				installed["/"+destination+filepath.Base(name)] = true
			} else {
				installed["/"+destination] = true
			}
		}
	}
	for _, unit := range units {
		if !installed["/usr/lib/systemd/system/"+unit] {
			t.Errorf("the package lacks %s", unit)
		}
		for _, word := range strings.Fields(setting(read(t, "../systemd", unit), "ExecStart")) {
			if strings.HasPrefix(word, "/") && !installed[word] {
				t.Errorf("%s names %s, which the package lacks", unit, word)
			}
		}
	}
	if deb.Units.Enable || deb.Units.Start || !deb.Units.Restart {
		t.Errorf("%+v: the units need settings before their first start", deb.Units)
	}
	// cargo-deb finds the users' file there by the package's name.
	if _, err := os.Stat(filepath.Join(root, "cli", deb.Scripts, "millpond.sysusers")); err != nil {
		t.Error(err)
	}
}

// The TLS drop-in and the package must agree on the folder and its group.
func TestThePackageHasTheFolderOfTheCertificate(t *testing.T) {
	group := setting(read(t, "../systemd/millpond-gateway-tls.conf"), "SupplementaryGroups")
	if line := "d /etc/millpond/gateway 0750 root " + group + "\n"; !strings.Contains(read(t, "../debian/millpond.tmpfiles"), line) {
		t.Errorf("millpond.tmpfiles lacks %q", line)
	}
}

func TestThePackageAndTheProgramAgreeOnGlibc(t *testing.T) {
	glibc := regexp.MustCompile(`(?m)^glibc=(.*)$`).FindStringSubmatch(read(t, root, "scripts", "dist.sh"))
	if glibc == nil || !strings.Contains(debian(t).Depends, "libc6 (>= "+glibc[1]+")") {
		t.Errorf("scripts/dist.sh links with glibc %v, the package depends on %s", glibc, debian(t).Depends)
	}
	helm := regexp.MustCompile(`helm v[0-9.]+`).FindString(read(t, root, "scripts", "install-helm.sh"))
	if library := strings.Replace(helm, "helm ", "helm.sh/helm/v3 ", 1); helm == "" || !strings.Contains(read(t, "go.mod"), library+"\n") {
		t.Errorf("scripts/install-helm.sh has %q, go.mod another version", helm)
	}
}
