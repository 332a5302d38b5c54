// The program behind `make bench-exporter` compares the CPU time that Collector exporters spend per record: Millpond's,
// Kafka's and S3's. Each exporter comes from its factory with production settings and sends the same records. Each run
// has its own process; the broker and the store run in other processes, and their time does not count. A separate
// module keeps these dependencies out of the exporter's.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

var (
	records    = flag.Int("records", 1_000_000, "records of a run")
	repeats    = flag.Int("repeats", 3, "runs of each candidate: the report shows the median")
	bodies     = flag.String("bodies", os.Getenv("MILLPOND_LOGHUB"), "a folder of *.log files whose lines become log bodies")
	only       = flag.String("only", "", "measure only this candidate")
	profile    = flag.String("profile", "", "with -run: write a CPU profile to this file")
	run        = flag.String("run", "", "measure this candidate in this process, against the servers at -kafka and -s3")
	kafkaFlag  = flag.String("kafka", "", "with -run: the broker's address")
	s3Flag     = flag.String("s3", "", "with -run: the store's URL")
	bucketFlag = flag.String("bucket", "", "with -run: the bucket or the topic")
)

func main() {
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	work := compare
	if *run != "" {
		work = measureHere
	}
	if err := work(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "bench-exporter:", err)
		os.Exit(1)
	}
}

// measureHere measures one candidate in this process and prints the result as JSON.
func measureHere(ctx context.Context) error {
	batches, err := readBatches(*bodies)
	if err != nil {
		return err
	}
	place := place{kafka: *kafkaFlag, s3: *s3Flag, name: *bucketFlag}
	index := slices.IndexFunc(candidates, func(c candidate) bool { return c.name == *run })
	if index < 0 {
		return fmt.Errorf("there is no candidate %q", *run)
	}
	sample, err := measure(ctx, candidates[index], place, batches, *records)
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(sample)
}

// compare measures all candidates in turn, several times over, to spread the machine's background load over all of
// them.
func compare(ctx context.Context) error {
	if _, err := readBatches(*bodies); err != nil {
		return err
	}
	chosen := func(c candidate) bool { return *only == "" || *only == c.name }
	needsKafka := slices.ContainsFunc(candidates, func(c candidate) bool {
		return chosen(c) && strings.HasPrefix(c.name, "kafka")
	})
	servers, err := startServers(ctx, needsKafka)
	if err != nil {
		return err
	}
	defer servers.stop()
	results := make(map[string][]sample)
	for repeat := range *repeats {
		for number, candidate := range candidates {
			if !chosen(candidate) {
				continue
			}
			place := place{servers.kafka, servers.s3, fmt.Sprintf("run-%d-%d", repeat, number)}
			if err := servers.makeBucket(ctx, place.name); err != nil {
				return err
			}
			sample, err := measureElsewhere(ctx, candidate, place)
			if err != nil {
				return fmt.Errorf("%s: %w", candidate.name, err)
			}
			if sample.StoredBytes, err = servers.stored(candidate, place.name); err != nil {
				return err
			}
			results[candidate.name] = append(results[candidate.name], sample)
			fmt.Fprintf(os.Stderr, "%s, run %d: %.2f CPU-seconds per million records, %.1f s\n",
				candidate.name, repeat+1, sample.perMillion(), sample.Seconds)
		}
	}
	report(results)
	return nil
}

// measureElsewhere measures a candidate in a separate process.
func measureElsewhere(ctx context.Context, candidate candidate, place place) (sample, error) {
	program, err := os.Executable()
	if err != nil {
		return sample{}, err
	}
	command := exec.CommandContext(ctx, program, "-run", candidate.name, "-kafka", place.kafka, "-s3", place.s3,
		"-bucket", place.name, "-bodies", *bodies, "-records", strconv.Itoa(*records), "-profile", *profile)
	command.Env = append(os.Environ(), credentials...)
	command.Stderr = os.Stderr
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	output, err := command.Output()
	if err != nil {
		return sample{}, errors.Join(err, ctx.Err())
	}
	var found sample
	return found, json.Unmarshal(output, &found)
}
