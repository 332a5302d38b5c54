package producer

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/oklog/ulid/v2"

	"millpond.dev/otel-exporter/internal/manifest"
	"millpond.dev/otel-exporter/internal/segment"
	"millpond.dev/otel-exporter/internal/storage"
)

// TestTheScriptsLeadToWhatTheySay runs the scripts that the producer in Rust runs, too (producer/tests/all/scripts.rs,
// which can also write them): the same commands lead to the same requests and the same states.
func TestTheScriptsLeadToWhatTheySay(t *testing.T) {
	paths, err := filepath.Glob("../../producer/testdata/*.txt")
	if err != nil || len(paths) != 8 {
		t.Fatalf("%v, %v", paths, err)
	}
	for _, path := range paths {
		script, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		world := newScriptWorld(1_000)
		lines := strings.Split(strings.TrimSuffix(string(script), "\n"), "\n")
		for at := 0; at < len(lines); {
			line := lines[at]
			at++
			if line == "" || strings.HasPrefix(line, "#") {
				continue
			}
			from := at
			for at < len(lines) && strings.HasPrefix(lines[at], "  > ") {
				at++
			}
			words := strings.Fields(line)
			var found []string
			if leadsTo := world.run(words[0], words[1:]); leadsTo != "" {
				for _, line := range strings.Split(leadsTo, "\n") {
					found = append(found, "  > "+line)
				}
			}
			if !slices.Equal(found, lines[from:at]) {
				t.Fatalf("%s:%d: %s leads to\n%s\nand not to\n%s", path, from, line,
					strings.Join(found, "\n"), strings.Join(lines[from:at], "\n"))
			}
		}
	}
}

// A scriptDraw has the clock, and names in the order of their drawing.
type scriptDraw struct {
	clockMs          uint64
	producers, pages byte
}

func (d *scriptDraw) unixMs() uint64 { return d.clockMs }

func (d *scriptDraw) nonce() uint64 { return 0 }

func (d *scriptDraw) ulid(notBeforeMs uint64) ulid.ULID {
	d.pages++
	return scriptName(max(d.clockMs, notBeforeMs), d.pages)
}

func (d *scriptDraw) producerID() manifest.ProducerID {
	d.producers++
	return scriptProducer(d.producers)
}

func scriptProducer(number byte) (id manifest.ProducerID) {
	for i := range id {
		id[i] = number
	}
	return id
}

func scriptName(atMs uint64, letter byte) (name ulid.ULID) {
	_ = name.SetTime(atMs)
	name[15] = letter
	return name
}

// scriptOther is the name of the producer that the scripts call the other one.
var scriptOther = scriptProducer(255)

// A scriptHeld is a claim that the producer holds for another one.
type scriptHeld struct {
	claim    manifest.Claim
	segments []manifest.NewSegment // empty: its records are in the first segment of the group
}

type scriptWorld struct {
	stored     *manifest.Manifest
	kept       *manifest.Manifest // an earlier state, which the store may show again
	draw       scriptDraw
	commits    commitState
	readsFirst readsFirst
	group      []manifest.NewSegment
	held       []scriptHeld
	sent, late swapStep
}

func newScriptWorld(tailMax int) *scriptWorld {
	world := &scriptWorld{}
	world.commits = commitState{bufferID: uuid.Nil, tailMax: tailMax, producer: world.draw.producerID()}
	return world
}

func (w *scriptWorld) run(command string, arguments []string) string {
	switch command {
	case "start":
		*w = *newScriptWorld(scriptValue(arguments[0]))
	case "clock":
		w.draw.clockMs = scriptNumber(arguments[0])
	case "upload":
		if !w.commits.mayGrow() {
			return "the group must not change"
		}
		for _, text := range arguments {
			w.group = append(w.group, scriptSegment(text, w.draw.clockMs))
		}
		return "group: " + shownNames(w.group)
	case "hold", "share":
		if !w.commits.mayGrow() {
			return "the group must not change"
		}
		return w.hold(arguments[0], arguments[1:])
	case "release":
		w.held = nil
	case "forward":
		number, may := w.commits.forward()
		if !may {
			return "not now"
		}
		return fmt.Sprintf("commit %d of %s has %s", number, shownProducer(w.commits.producer), shownNames(w.group))
	case "elsewhere":
		if !w.commits.landedElsewhere(scriptNumber(arguments[0])) {
			return "an old answer"
		}
		told := w.group
		w.group = nil
		return "acknowledge " + shownNames(told)
	case "begin":
		w.readsFirst.begin(&w.commits)
	case "next":
		return w.next()
	case "read":
		if len(arguments) > 0 {
			return w.hear("read the kept state", w.commits.read(snapshotOf(w.kept)))
		}
		return w.hear("read", w.commits.read(snapshotOf(w.stored)))
	case "keep":
		w.kept = w.stored
	case "restored":
		w.commits.isRestored()
	case "store":
		w.commits.stored(arguments[0] == "succeeds")
	case "swap":
		return w.swap(arguments[0])
	case "land":
		if w.land(w.late) {
			return "it lands"
		}
		return "the store refuses it"
	case "other":
		return w.commitAs(scriptOther, arguments)
	case "register":
		w.change(func(state *manifest.Manifest) { *state = *state.Register(scriptClaimant(arguments[0]), 0) })
	case "claims":
		return w.claims(arguments)
	case "impostor":
		return w.commitAs(w.commits.producer, arguments)
	case "source":
		of := manifest.SourcePartition{Source: "cluster", Topic: "topic", Partition: uint32(scriptNumber(arguments[0])), Stream: "events"}
		row := manifest.SourceRow{Of: of, Next: scriptNumber(arguments[1])}
		w.change(func(state *manifest.Manifest) { state.Sources = append(slices.Clip(state.Sources), row) })
	case "forget":
		w.change(func(state *manifest.Manifest) { state.Producers = nil })
	case "floor":
		w.change(func(state *manifest.Manifest) { state.OrphanFloorMs = scriptNumber(arguments[0]) })
	case "remove":
		w.stored = nil
	case "state":
		if w.stored == nil {
			return "there is no manifest"
		}
		return shownState(w.stored)
	case "constants":
		return fmt.Sprintf("reads first: %d\nsegments of a commit: %d\ntail: %d\nstreams: %d\n"+
			"producers: %d\nproducers kept: %d\nproducer expiry: %d ms", readsFirstMax, commitSegmentsMax,
			manifest.TailMax, manifest.StreamsMax, manifest.ProducersMax, manifest.ProducersKept, manifest.ProducerExpiryMs)
	case "check":
		return scriptCheck(arguments)
	default:
		panic("no such command: " + command)
	}
	return ""
}

func snapshotOf(state *manifest.Manifest) *manifest.Snapshot {
	if state == nil {
		return nil
	}
	return &manifest.Snapshot{State: state, Version: versionOf(state)}
}

func versionOf(state *manifest.Manifest) storage.Version {
	return storage.Version(strconv.FormatUint(state.Stamp.Version, 10))
}

func (w *scriptWorld) next() string {
	built := w.built()
	switch next := w.commits.next(built, &w.draw).(type) {
	case readStep:
		return "read the manifest"
	case storePageStep:
		page := next.page
		return fmt.Sprintf("store %s with sequences %d to %d", shownName(page.name), page.page.First, page.page.Last())
	case swapStep:
		w.sent = next
		return w.shownSwap(next, built)
	case registeredStep:
		return shownProducer(w.commits.producer) + " is registered"
	case settleStep:
		return w.settle(next)
	case uploadAgainStep:
		for _, place := range next.places {
			old := w.segment(place)
			*old = scriptName(max(w.draw.clockMs, next.floorMs), old[15])
		}
		return "upload again, group: " + shownNames(w.built().segments)
	case dropStep:
		if next.place >= len(built.segments) {
			return "drop nothing"
		}
		name := built.segments[next.place].Segment
		isDropped := func(segment manifest.NewSegment) bool { return segment.Segment == name }
		w.group = slices.DeleteFunc(w.group, isDropped)
		w.held = slices.DeleteFunc(w.held, func(held scriptHeld) bool { return slices.ContainsFunc(held.segments, isDropped) })
		// The name is the same in both languages; a script is easier to read with the short one.
		return fmt.Sprintf("drop %s: %s", shownName(name), strings.ReplaceAll(next.reason, name.String(), shownName(name)))
	case renewStep:
		var unknown []manifest.NewSegment
		if next.inDoubt {
			unknown, w.group = w.group, nil
		}
		return fmt.Sprintf("go on as %s: %s\nunknown: %s\ngroup: %s", shownProducer(next.producer), next.reason,
			shownNames(unknown), shownNames(w.group))
	}
	panic("no such step")
}

// built is the group with the segments and the claims of others.
func (w *scriptWorld) built() group {
	built := group{segments: slices.Clone(w.group), own: len(w.group)}
	for _, held := range w.held {
		claim := held.claim
		claim.Start, claim.End = 0, 1
		if len(held.segments) > 0 {
			claim.Start = len(built.segments)
			built.segments = append(built.segments, held.segments...)
			claim.End = len(built.segments)
		}
		built.held = append(built.held, claim)
	}
	return built
}

func (w *scriptWorld) segment(place int) *ulid.ULID {
	if place < len(w.group) {
		return &w.group[place].Segment
	}
	place -= len(w.group)
	for _, held := range w.held {
		if place < len(held.segments) {
			return &held.segments[place].Segment
		}
		place -= len(held.segments)
	}
	panic("no such segment")
}

func (w *scriptWorld) hold(run string, texts []string) string {
	claim := scriptClaim(run + "@0..1")
	if err := checkOffer(w.commits.producer, w.built().held, claim); err != nil {
		return "refused: " + err.Error()
	}
	var segments []manifest.NewSegment
	for _, text := range texts {
		segments = append(segments, scriptSegment(text, w.draw.clockMs))
	}
	w.held = append(w.held, scriptHeld{claim, segments})
	return "group: " + shownNames(w.built().segments)
}

func (w *scriptWorld) settle(next settleStep) string {
	var lines []string
	switch {
	case next.own != nil && next.own.elsewhere:
		lines = append(lines, fmt.Sprintf("acknowledge %s, elsewhere in %d from sequence %d",
			shownNames(w.group), next.own.count, next.own.firstSequence))
		w.group = nil
	case next.own != nil:
		lines = append(lines, w.acknowledge(next.own.landed))
	}
	for _, settled := range next.held {
		text := shownRun(w.held[settled.place].claim)
		switch settled.verdict {
		case committedVerdict:
			text += " is committed"
			if settled.known {
				text += fmt.Sprintf(" from sequence %d", settled.firstSequence)
			}
		case partlyVerdict:
			text += fmt.Sprintf(" is committed through %d", settled.last)
		case gapVerdict:
			text += fmt.Sprintf(" does not follow %d", settled.last)
		case forgottenVerdict:
			text += " is of a producer that the manifest does not know"
		case spentVerdict:
			text += " is spent"
		case invalidVerdict:
			text += " is not valid"
		}
		lines = append(lines, text)
	}
	for _, settled := range slices.Backward(next.held) {
		w.held = slices.Delete(w.held, settled.place, settled.place+1)
	}
	return strings.Join(lines, "\n")
}

func (w *scriptWorld) shownSwap(swap swapStep, built group) string {
	expected := "nothing"
	if swap.expected != nil {
		expected = "version " + string(*swap.expected)
	}
	text := fmt.Sprintf("swap %s: register %s", expected, shownProducer(w.commits.producer))
	if attempt := swap.attempt; attempt != nil {
		var segments []string
		for _, name := range attempt.segments {
			segments = append(segments, shownName(name))
		}
		what := ""
		if built.own > 0 {
			what = fmt.Sprintf("commit %d has ", attempt.number)
		}
		text = fmt.Sprintf("swap %s: %s%s from sequence %d", expected, what, strings.Join(segments, " "), attempt.firstSequence)
	}
	for _, claim := range built.held {
		text += fmt.Sprintf(", with %s@%d..%d", shownRun(claim), claim.Start, claim.End)
	}
	for _, page := range swap.next.Pages {
		text += ", after " + shownName(page.Page)
	}
	return text
}

func (w *scriptWorld) acknowledge(landed landed) string {
	count := min(landed.count, len(w.group))
	told := w.group[:count]
	w.group = w.group[count:]
	return fmt.Sprintf("acknowledge %s from sequence %d", shownNames(told), landed.firstSequence)
}

func (w *scriptWorld) hear(text string, news news) string {
	w.readsFirst.hear(news)
	if news.isPast {
		text += ", which is earlier and not taken"
	}
	if news.pageJoined {
		text += ", the page is in the log"
	}
	if news.metAnother {
		text += ", another producer may have committed"
	}
	if news.landed != nil {
		built := w.built()
		if built.own > 0 {
			text += "\n" + w.acknowledge(*news.landed)
		}
		for _, claim := range built.held {
			text += fmt.Sprintf("\n%s is committed from sequence %d", shownRun(claim), news.landed.firstSequence+uint64(claim.Start))
		}
		w.held = nil
	}
	return text
}

func (w *scriptWorld) swap(outcome string) string {
	swap := w.sent
	if swap.next == nil {
		return "no swap was sent"
	}
	w.sent = swapStep{}
	lands, answer := true, storage.Committed
	switch outcome {
	case "reported":
	case "unreported":
		answer = storage.Unknown
	case "repeated":
		answer = storage.Mismatch
	case "lost":
		lands, answer = false, storage.Unknown
	case "late":
		lands, answer = false, storage.Unknown
		w.late = swap
	default:
		panic("no such outcome: " + outcome)
	}
	if lands && !w.land(swap) {
		answer = storage.Mismatch
	}
	var found *manifest.Snapshot
	text := map[storage.Outcome]string{storage.Mismatch: "refused", storage.Unknown: "unknown"}[answer]
	if answer == storage.Committed {
		text, found = "committed", snapshotOf(w.stored)
	}
	return w.hear(text, w.commits.swapped(answer, found))
}

func (w *scriptWorld) land(swap swapStep) bool {
	lands := swap.expected == nil && w.stored == nil ||
		swap.expected != nil && w.stored != nil && *swap.expected == versionOf(w.stored)
	if lands {
		w.stored = swap.next
	}
	return lands
}

func (w *scriptWorld) change(change func(*manifest.Manifest)) {
	w.stored = w.stored.Stamped(0)
	change(w.stored)
}

// commitAs: somebody else commits, registering first where that is needed.
func (w *scriptWorld) commitAs(id manifest.ProducerID, texts []string) string {
	state := w.stored
	if state == nil {
		state = manifest.New(uuid.Nil, 0)
	}
	state = state.Register(id, w.draw.clockMs)
	var segments []manifest.NewSegment
	for _, text := range texts {
		segments = append(segments, scriptSegment(text, w.draw.clockMs))
	}
	row, _ := state.Producer(id)
	claims := []manifest.Claim{manifest.One(id, row.Commit+1, len(segments))}
	commit, err := state.Commit(claims, segments, w.draw.clockMs)
	if err != nil {
		panic(err)
	}
	w.stored = commit.State.Stamped(0)
	return fmt.Sprintf("from sequence %d", commit.FirstSequence)
}

// claims commits with these claims, as whoever holds the records: `2:1-1@0..1 3:1-3@0..2 of a b`.
func (w *scriptWorld) claims(arguments []string) string {
	of := slices.Index(arguments, "of")
	var claims []manifest.Claim
	for _, text := range arguments[:of] {
		claims = append(claims, scriptClaim(text))
	}
	var segments []manifest.NewSegment
	for _, text := range arguments[of+1:] {
		segments = append(segments, scriptSegment(text, w.draw.clockMs))
	}
	commit, err := w.stored.Commit(claims, segments, w.draw.clockMs)
	if err == nil {
		w.stored = commit.State.Stamped(0)
		return fmt.Sprintf("from sequence %d", commit.FirstSequence)
	}
	var refused *manifest.ClaimsError
	if !errors.As(err, &refused) {
		return err.Error()
	}
	var lines []string
	for _, unusable := range refused.Unusable {
		lines = append(lines, fmt.Sprintf("claim %d: %v", unusable.Claim, unusable.Reason))
	}
	return strings.Join(lines, "\n")
}

// scriptClaimant: `2` is the producer with an ID of 2s.
func scriptClaimant(text string) manifest.ProducerID { return scriptProducer(byte(scriptNumber(text))) }

// scriptClaim: `2:1-3@0..2` are the numbers 1 to 3 of producer 2, with records in the first two segments.
func scriptClaim(text string) manifest.Claim {
	producer, rest, _ := strings.Cut(text, ":")
	numbers, places, _ := strings.Cut(rest, "@")
	first, last, _ := strings.Cut(numbers, "-")
	start, end, _ := strings.Cut(places, "..")
	return manifest.Claim{
		Producer: scriptClaimant(producer),
		First:    scriptNumber(first), Last: scriptNumber(last),
		Start: int(scriptNumber(start)), End: int(scriptNumber(end)),
	}
}

// scriptSegment: `a`, `a:ndjson` in a stream of this encoding, `a#2` with two parts of one stream, or `a!` in a stream of no
// valid name.
func scriptSegment(text string, atMs uint64) manifest.NewSegment {
	part := manifest.NewPart{Stream: "events", Encoding: segment.OTLP}
	part.Part = manifest.Part{Length: 1, RawLen: 1, Messages: 1, Records: 1}
	if strings.Contains(text, ":ndjson") {
		part.Encoding = segment.NDJSON
	}
	if strings.HasSuffix(text, "!") {
		part.Stream = "a/b"
	}
	parts := []manifest.NewPart{part}
	if strings.HasSuffix(text, "#2") {
		parts = append(parts, part)
	}
	return manifest.NewSegment{Segment: scriptName(atMs, text[0]), Size: 1, Parts: parts}
}

func shownName(name ulid.ULID) string {
	if drawn := name[15]; drawn < 'a' {
		return fmt.Sprintf("page%d@%d", drawn, name.Time())
	}
	return fmt.Sprintf("%c@%d", name[15], name.Time())
}

func shownNames(segments []manifest.NewSegment) string {
	if len(segments) == 0 {
		return "nothing"
	}
	var names []string
	for i := range segments {
		names = append(names, shownName(segments[i].Segment))
	}
	return strings.Join(names, " ")
}

func shownRun(claim manifest.Claim) string {
	return fmt.Sprintf("%d:%d-%d", claim.Producer[0], claim.First, claim.Last)
}

func shownProducer(id manifest.ProducerID) string { return fmt.Sprintf("producer %d", id[0]) }

func shownState(state *manifest.Manifest) string {
	var text strings.Builder
	fmt.Fprintf(&text, "version %d, next sequence %d, orphan floor %d\n", state.Stamp.Version, state.NextSequence, state.OrphanFloorMs)
	for _, stream := range state.Streams {
		fmt.Fprintf(&text, "stream %s: %s\n", stream.Name, stream.Encoding)
	}
	for _, page := range state.Pages {
		fmt.Fprintf(&text, "%s: sequences %d to %d\n", shownName(page.Page), page.First, page.Last)
	}
	var tail []string
	for i := range state.Tail {
		tail = append(tail, shownName(state.Tail[i].Segment))
	}
	fmt.Fprintf(&text, "tail from %d: %s\n", state.TailStart(), strings.Join(tail, " "))
	for _, row := range state.Producers {
		fmt.Fprintf(&text, "%s: commit %d has %d from sequence %d\n", shownProducer(row.ID), row.Commit, row.Count, row.FirstSequence)
	}
	for _, row := range state.Sources {
		fmt.Fprintf(&text, "source %s/%d of %s into %s: next %d\n", row.Of.Topic, row.Of.Partition, row.Of.Source, row.Of.Stream, row.Next)
	}
	return strings.TrimSpace(text.String())
}

func scriptNumber(text string) uint64 {
	number, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		panic(err)
	}
	return number
}

func scriptValue(setting string) int {
	_, value, _ := strings.Cut(setting, "=")
	return int(scriptNumber(value))
}

func scriptCheck(settings []string) string {
	config := DefaultConfig()
	config.Encoders = 2
	for _, text := range settings {
		setting, _, _ := strings.Cut(text, "=")
		value := scriptValue(text)
		numbers := map[string]*int{
			"segment_bytes": &config.SegmentBytes, "segment_raw_bytes": &config.SegmentRawBytes,
			"block_bytes": &config.BlockBytes, "max_uploads": &config.MaxUploads,
			"compression_level": &config.CompressionLevel, "memory_limit": &config.MemoryLimit,
			"encoders": &config.Encoders, "shard": &config.Shard, "shards": &config.Shards, "tail_max": &config.TailMax,
		}
		times := map[string]*time.Duration{
			"linger_ms": &config.Linger, "max_wait_ms": &config.MaxWait, "start_timeout_ms": &config.StartTimeout,
		}
		switch {
		case numbers[setting] != nil:
			*numbers[setting] = value
		case times[setting] != nil:
			*times[setting] = time.Duration(value) * time.Millisecond
		default:
			panic("no such setting: " + setting)
		}
	}
	err := config.Check()
	if err == nil {
		return "it is right"
	}
	// The rule of this one is another in Rust.
	if text, _, cut := strings.Cut(err.Error(), ": "); cut && strings.HasPrefix(text, "memory_limit ") {
		return text
	}
	return err.Error()
}
