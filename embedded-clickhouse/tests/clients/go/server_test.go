// Package clients tests the unmodified clickhouse-go against embedded-clickhouse. One server runs for all tests on a
// free port with a temporary folder; every test has its own database.
//
// The program is target/debug/embedded-clickhouse or the value of MILLPOND_EMBEDDED_CLICKHOUSE.
package clients

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ClickHouse/clickhouse-go/v2"
	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"
)

// Longer than this counts as hung.
const patience = 2 * time.Minute

// addresses maps each protocol to the server's HOST:PORT.
var addresses = map[clickhouse.Protocol]string{}

func TestMain(m *testing.M) {
	code, err := withServer(m.Run)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// withServer runs the tests with a server, which must shut down cleanly.
func withServer(tests func() int) (code int, err error) {
	program := os.Getenv("MILLPOND_EMBEDDED_CLICKHOUSE")
	if program == "" {
		program = filepath.Join("..", "..", "..", "..", "target", "debug", "embedded-clickhouse")
	}
	data, err := os.MkdirTemp("", "embedded-clickhouse-go-")
	if err != nil {
		return 1, err
	}
	defer os.RemoveAll(data)
	server := exec.Command(program, "--listen", "127.0.0.1:0", "--tcp-port", "0", "--path", data)
	server.Stderr = os.Stderr
	server.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	stdout, err := server.StdoutPipe()
	if err != nil {
		return 1, err
	}
	if err := server.Start(); err != nil {
		return 1, fmt.Errorf("%w: build it with `cargo build -p embedded-clickhouse`", err)
	}
	defer server.Process.Kill()
	lines := bufio.NewReader(stdout)
	for _, protocol := range protocols {
		line, err := lines.ReadString('\n')
		if err != nil {
			return 1, fmt.Errorf("%s did not start: %w", program, err)
		}
		_, addresses[protocol], _ = strings.Cut(strings.TrimSpace(line), "://")
	}

	code = tests()
	if err := server.Process.Signal(syscall.SIGTERM); err != nil {
		return 1, fmt.Errorf("the server has ended on its own: %w", err)
	}
	hung := time.AfterFunc(patience, func() { server.Process.Kill() })
	defer hung.Stop()
	if err := server.Wait(); err != nil {
		return 1, fmt.Errorf("the server did not shut down cleanly: %w", err)
	}
	return code, nil
}

// protocols are in the order in which the server prints their addresses.
var protocols = []clickhouse.Protocol{clickhouse.HTTP, clickhouse.Native}

// onEachProtocol runs a test over HTTP and over the native protocol, each with a new database.
func onEachProtocol(t *testing.T, test func(t *testing.T, ctx context.Context, options *clickhouse.Options)) {
	for _, protocol := range protocols {
		t.Run(protocol.String(), func(t *testing.T) {
			ctx, options := database(t, protocol)
			test(t, ctx, options)
		})
	}
}

// withEachCompression runs a test with every compression of each protocol (except brotli) and without.
func withEachCompression(t *testing.T, test func(t *testing.T, ctx context.Context, options *clickhouse.Options)) {
	compressions := map[string]*clickhouse.Compression{
		"none":    nil,
		"lz4":     {Method: clickhouse.CompressionLZ4},
		"zstd":    {Method: clickhouse.CompressionZSTD},
		"gzip":    {Method: clickhouse.CompressionGZIP, Level: 3},
		"deflate": {Method: clickhouse.CompressionDeflate, Level: 3},
	}
	for _, protocol := range protocols {
		for name, compression := range compressions {
			if protocol == clickhouse.Native && (name == "gzip" || name == "deflate") {
				continue
			}
			t.Run(protocol.String()+"/"+name, func(t *testing.T) {
				ctx, options := database(t, protocol)
				options.Compression = compression
				test(t, ctx, options)
			})
		}
	}
}

// database creates a database for the test and returns a context and options for it.
func database(t *testing.T, protocol clickhouse.Protocol) (context.Context, *clickhouse.Options) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	name := strings.NewReplacer("/", "_", "-", "_").Replace(t.Name())
	exec1(t, ctx, open(t, options(protocol, "default")), "CREATE DATABASE `"+name+"`")
	return ctx, options(protocol, name)
}

func options(protocol clickhouse.Protocol, database string) *clickhouse.Options {
	return &clickhouse.Options{
		Protocol: protocol,
		Addr:     []string{addresses[protocol]},
		Auth:     clickhouse.Auth{Database: database},
	}
}

func open(t *testing.T, options *clickhouse.Options) driver.Conn {
	t.Helper()
	conn, err := clickhouse.Open(options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

func exec1(t *testing.T, ctx context.Context, conn driver.Conn, sql string, args ...any) {
	t.Helper()
	if err := conn.Exec(ctx, sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// one returns the single value of a query.
func one[T any](t *testing.T, ctx context.Context, conn driver.Conn, sql string, args ...any) T {
	t.Helper()
	var value T
	if err := conn.QueryRow(ctx, sql, args...).Scan(&value); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return value
}
