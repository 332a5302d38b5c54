package deploy

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// pages returns the pages for operators, without their blocks of code.
func pages(t *testing.T) map[string]string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	err = filepath.WalkDir("..", func(path string, _ fs.DirEntry, err error) error {
		if strings.HasSuffix(path, ".md") {
			files = append(files, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	files = append(files, filepath.Join(root, "CHANGELOG.md"), filepath.Join(root, "design", "compatibility.md"))
	block := regexp.MustCompile("(?ms)^```.*?^```$")
	found := map[string]string{}
	for _, file := range files {
		found[file] = block.ReplaceAllString(read(t, file), "")
	}
	return found
}

// anchor returns the fragment that links to a heading.
func anchor(heading string) string {
	kept := regexp.MustCompile(`[^a-z0-9 _-]`).ReplaceAllString(strings.ToLower(heading), "")
	return strings.ReplaceAll(strings.TrimSpace(kept), " ", "-")
}

func TestLinksLeadSomewhere(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)]+)\)`)
	heading := regexp.MustCompile(`(?m)^#+ (.+)$`)
	for page, text := range pages(t) {
		for _, found := range link.FindAllStringSubmatch(text, -1) {
			if strings.HasPrefix(found[1], "https://") {
				continue
			}
			file, fragment, _ := strings.Cut(found[1], "#")
			target := page
			if file != "" {
				target = filepath.Join(filepath.Dir(page), file)
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s: %v", page, err)
				continue
			}
			there := func(h []string) bool { return anchor(h[1]) == fragment }
			if fragment != "" && !slices.ContainsFunc(heading.FindAllStringSubmatch(read(t, target), -1), there) {
				t.Errorf("%s: %s has no heading for #%s", page, target, fragment)
			}
		}
	}
}

// The commands in the operators' pages.
var commands = []string{
	"gateway", "bridge kafka", "consume", "gc", "doctor", "load", "config", "cost", "completions", "man", "transform", "tables print", "tables create", "tables migrate", "manifest dump", "manifest check", "segment dump",
	"status", "tail", "buffer shards", "buffer route", "buffer unroute", "consumer list", "consumer wait", "consumer reset", "consumer repair", "consumer skip", "consumer remove",
	"dead-letters list", "dead-letters show", "dead-letters replay", "dead-letters remove",
}

func TestFlagsAndCommandsOfThePagesAreThePrograms(t *testing.T) {
	code := regexp.MustCompile("`([^`]+)`")
	flag := regexp.MustCompile(`(?:^|[ |])(--[a-z][a-z-]*)`)
	command := regexp.MustCompile(`^millpond ([a-z][a-z-]*(?: [a-z]+)?)`)
	exists := func(flag string) bool {
		return flag == "--version" ||
			slices.ContainsFunc(commands, func(command string) bool { return hasFlag(t, command, flag) })
	}
	flags, named := 0, 0
	for page, text := range pages(t) {
		for _, found := range code.FindAllStringSubmatch(text, -1) {
			if strings.HasPrefix(found[1], "docker ") || strings.HasPrefix(found[1], "clickhouse ") || strings.HasPrefix(found[1], "--build-arg") {
				continue
			}
			for _, given := range flag.FindAllStringSubmatch(found[1], -1) {
				flags++
				if !exists(given[1]) {
					t.Errorf("%s: no command has %s", page, given[1])
				}
			}
			for _, given := range command.FindAllStringSubmatch(found[1], -1) {
				named++
				known := func(command string) bool { return strings.HasPrefix(given[1]+" ", command+" ") }
				group := func(command string) bool { return strings.HasPrefix(command, given[1]+" ") }
				only := given[1] == "dev" || given[1] == "demo"
				if !only && !slices.ContainsFunc(commands, known) && !slices.ContainsFunc(commands, group) {
					t.Errorf("%s: there is no `millpond %s`", page, given[1])
				}
			}
		}
	}
	if flags < 30 || named < 10 {
		t.Errorf("%d flags and %d commands are not all", flags, named)
	}
}

// An operator who is woken finds the rule in docs/monitoring.md and the remedy in docs/failures.md.
func TestAlertsAreDocumented(t *testing.T) {
	rules := read(t, filepath.Join("..", "grafana", "alerts.yaml"))
	monitoring := read(t, filepath.Join(root, "docs", "monitoring.md"))
	each := regexp.MustCompile(`(?m)^      - alert: (\w+)$`).FindAllStringSubmatchIndex(rules, -1)
	if len(each) < 10 {
		t.Fatalf("%d rules are not all", len(each))
	}
	severity := regexp.MustCompile(`severity: (critical|warning) `)
	runbook := regexp.MustCompile(`runbook: (docs/[a-z]+\.md)#(\S+)`)
	heading := regexp.MustCompile(`(?m)^#+ (.+)$`)
	woken, tomorrow, _ := strings.Cut(monitoring, "## To look at tomorrow")
	for i, place := range each {
		name, end := rules[place[2]:place[3]], len(rules)
		if i+1 < len(each) {
			end = each[i+1][0]
		}
		rule := rules[place[0]:end]
		level := severity.FindStringSubmatch(rule)
		if level == nil {
			t.Errorf("%s has no severity", name)
			continue
		}
		table := map[string]string{"critical": woken, "warning": tomorrow}[level[1]]
		if !strings.Contains(table, "`"+name+"`") {
			t.Errorf("%s is %s, and docs/monitoring.md does not have it there", name, level[1])
		}
		book := runbook.FindStringSubmatch(rule)
		if book == nil {
			t.Errorf("%s has no runbook", name)
			continue
		}
		there := func(h []string) bool { return anchor(h[1]) == book[2] }
		if !slices.ContainsFunc(heading.FindAllStringSubmatch(read(t, filepath.Join(root, book[1])), -1), there) {
			t.Errorf("%s: %s has no heading for #%s", name, book[1], book[2])
		}
	}
}
