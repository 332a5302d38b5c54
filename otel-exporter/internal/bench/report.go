package main

import (
	"fmt"
	"slices"
)

// report prints a table of each candidate's cost, relative to Millpond's exporter in the same round.
func report(results map[string][]sample) {
	fmt.Println("| median (smallest..largest) | CPU-seconds per million records | over Millpond's | bytes a record | records a second | peak memory, MiB |")
	fmt.Println("| --- | --- | --- | --- | --- | --- |")
	own := results[millpondName]
	for _, candidate := range candidates {
		samples := results[candidate.name]
		if len(samples) == 0 {
			continue
		}
		var cpu, over, rate, peak []float64
		for round, sample := range samples {
			cpu = append(cpu, sample.perMillion())
			rate = append(rate, float64(sample.Records)/sample.Seconds)
			peak = append(peak, sample.PeakMiB)
			if round < len(own) {
				over = append(over, sample.perMillion()/own[round].perMillion())
			}
		}
		stored := "–"
		if bytes := samples[0].StoredBytes; bytes > 0 {
			stored = fmt.Sprintf("%.0f", float64(bytes)/float64(samples[0].AllRecords))
		}
		fmt.Printf("| %s | %s | %s | %s | %.0f | %.0f |\n", candidate.name, spread(cpu), spread(over), stored, median(rate), median(peak))
	}
	for _, samples := range results {
		fmt.Printf("\n%d records a run, %d raw bytes each as protobuf.\n", samples[0].Records, samples[0].RawBytes/samples[0].Records)
		break
	}
}

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
}

func spread(values []float64) string {
	if len(values) == 0 {
		return "–"
	}
	return fmt.Sprintf("%.2f (%.2f..%.2f)", median(values), slices.Min(values), slices.Max(values))
}
