// Prometheus's own parts (scraper, store, query engine, rules) in one program for the tests. It scrapes the targets, then
// evaluates each query of its input, one per line, and the expression of each alerting rule:
//
//	prometheus -target gateway=127.0.0.1:4380 -target consumer=127.0.0.1:4381 -scrapes 8 -rules FILE < queries
//
// For each it prints one line {"query", "alert", "series", "error"}.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/config"
	"github.com/prometheus/prometheus/discovery/targetgroup"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/scrape"
	"github.com/prometheus/prometheus/tsdb"
)

const every = 500 * time.Millisecond

type answer struct {
	Query  string `json:"query"`
	Alert  string `json:"alert,omitempty"`
	Series int    `json:"series"`
	Error  string `json:"error,omitempty"`
}

func main() {
	targets := map[string]string{}
	flag.Func("target", "JOB=HOST:PORT; repeatable", func(text string) error {
		job, address, found := strings.Cut(text, "=")
		if !found {
			return errors.New("write JOB=HOST:PORT")
		}
		targets[job] = address
		return nil
	})
	scrapes := flag.Int("scrapes", 8, "scrapes of every target before the first query")
	rules := flag.String("rules", "", "a file of alerting rules")
	flag.Parse()
	if err := run(targets, *scrapes, *rules); err != nil {
		fmt.Fprintln(os.Stderr, "prometheus:", err)
		os.Exit(1)
	}
}

func run(targets map[string]string, scrapes int, rules string) error {
	queries, err := read(rules)
	if err != nil {
		return err
	}
	directory, err := os.MkdirTemp("", "prometheus")
	if err != nil {
		return err
	}
	defer os.RemoveAll(directory)
	logger := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	db, err := tsdb.Open(directory, logger, nil, tsdb.DefaultOptions(), nil)
	if err != nil {
		return err
	}
	defer db.Close()
	engine := promql.NewEngine(promql.EngineOpts{Logger: logger, MaxSamples: 1_000_000, Timeout: time.Minute})
	ask := func(query string, at time.Time) (int, error) {
		question, err := engine.NewInstantQuery(context.Background(), db, nil, query, at)
		if err != nil {
			return 0, err
		}
		defer question.Close()
		result := question.Exec(context.Background())
		if result.Err != nil {
			return 0, result.Err
		}
		vector, err := result.Vector()
		return len(vector), err
	}
	at, err := scrapeAll(targets, scrapes, db, logger, ask)
	if err != nil {
		return err
	}
	out := json.NewEncoder(os.Stdout)
	for _, query := range queries {
		series, err := ask(query.Query, at)
		query.Series = series
		if err != nil {
			query.Error = err.Error()
		}
		if err := out.Encode(query); err != nil {
			return err
		}
	}
	return nil
}

// The queries: the input's lines, then the rules.
func read(rules string) ([]answer, error) {
	var queries []answer
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		queries = append(queries, answer{Query: lines.Text()})
	}
	if err := lines.Err(); err != nil || rules == "" {
		return queries, err
	}
	groups, errs := rulefmt.ParseFile(rules, false, model.UTF8Validation)
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	for _, group := range groups.Groups {
		for _, rule := range group.Rules {
			queries = append(queries, answer{Query: rule.Expr, Alert: rule.Alert})
		}
	}
	return queries, nil
}

func scrapeAll(
	targets map[string]string, scrapes int, db *tsdb.DB, logger *slog.Logger,
	ask func(string, time.Time) (int, error),
) (time.Time, error) {
	never := time.Time{}
	var yaml strings.Builder
	fmt.Fprintf(&yaml, "global: {scrape_interval: %s, scrape_timeout: %s}\nscrape_configs:\n", every, every)
	for job := range targets {
		fmt.Fprintf(&yaml, "- job_name: %s\n", job)
	}
	configuration, err := config.Load(yaml.String(), logger)
	if err != nil {
		return never, err
	}
	manager, err := scrape.NewManager(&scrape.Options{}, logger, nil, db, prometheus.NewRegistry())
	if err != nil {
		return never, err
	}
	if err := manager.ApplyConfig(configuration); err != nil {
		return never, err
	}
	sets := make(chan map[string][]*targetgroup.Group, 1)
	groups := map[string][]*targetgroup.Group{}
	for job, address := range targets {
		groups[job] = []*targetgroup.Group{{
			Source:  job,
			Targets: []model.LabelSet{{model.AddressLabel: model.LabelValue(address)}},
		}}
	}
	sets <- groups
	go manager.Run(sets)
	defer manager.Stop()
	// Until each target has been scraped that often.
	enough := fmt.Sprintf("count_over_time(up[1h]) >= %d and last_over_time(up[1h]) == 1", scrapes)
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(every) {
		// A scrape takes at most the time between two: all that began before this time have ended. A later one may still
		// fail on a busy machine, and would hide its target's metrics.
		at := time.Now().Add(-2 * every)
		if done, err := ask(enough, at); err != nil || done == len(targets) {
			return at, err
		}
		if time.Now().After(deadline) {
			return never, errors.New("the targets were not scraped within 2 minutes: are they up?")
		}
	}
}
