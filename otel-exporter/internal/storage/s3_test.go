package storage

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
)

// A minio is a real S3 server on a free port, with its data in a temporary folder. The tests share one, each with its
// own prefixes.
type minio struct {
	endpoint string
	process  *exec.Cmd
	ended    chan struct{}
}

func (*minio) url() string { return "s3://millpond-test/" + uuid.NewString() }

// newBucket returns the URL of a bucket that does not exist.
func (*minio) newBucket() string { return "s3://" + uuid.NewString() + "/p" }

var sharedMinio = sync.OnceValues(func() (*minio, error) {
	program := os.Getenv("MILLPOND_MINIO")
	if program == "" {
		return nil, errors.New(`MILLPOND_MINIO is not set to the MinIO to test with: run make test-go, or eval "$(scripts/tools.sh minio)"`)
	}
	data, err := os.MkdirTemp("", "millpond-minio-")
	if err != nil {
		return nil, err
	}
	minioData = data
	// Another process may take the free port before MinIO does.
	for range 3 {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		address := listener.Addr().String()
		listener.Close()
		command := exec.Command(program, "server", "--quiet", "--address", address, data)
		command.Env = append(os.Environ(), "MINIO_ROOT_USER=millpond-test", "MINIO_ROOT_PASSWORD=millpond-test-secret",
			"MINIO_BROWSER=off", "MINIO_UPDATE=off", "CI=true")
		if err := command.Start(); err != nil {
			return nil, err
		}
		server := &minio{"http://" + address, command, make(chan struct{})}
		go func() {
			_ = command.Wait()
			close(server.ended)
		}()
		if server.answers() {
			return server, nil
		}
	}
	return nil, errors.New("minio exits as soon as it starts")
})

var minioData string

func TestMain(m *testing.M) {
	code := m.Run()
	if minioData != "" {
		if server, err := sharedMinio(); err == nil {
			_ = server.process.Process.Kill()
			<-server.ended
		}
		_ = os.RemoveAll(minioData)
	}
	os.Exit(code)
}

// startMinio returns the server and sets its credentials for the test. Without the program the test fails: a skipped
// test would count as passed.
func startMinio(t *testing.T) *minio {
	t.Helper()
	server, err := sharedMinio()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("AWS_ACCESS_KEY_ID", "millpond-test")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "millpond-test-secret")
	t.Setenv("AWS_REGION", "us-east-1")
	t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
	return server
}

// answers waits until the server responds, however slow the machine is. It returns false if the server exits.
func (m *minio) answers() bool {
	for {
		if response, err := http.Get(m.endpoint + "/minio/health/cluster"); err == nil {
			response.Body.Close()
			if response.StatusCode == http.StatusOK {
				return true
			}
		}
		select {
		case <-m.ended:
			return false
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func TestAMissingOrForbiddenBucketIsAPermanentError(t *testing.T) {
	server := startMinio(t)
	options := Options{Endpoint: server.endpoint}
	url := server.newBucket()
	_, err := Open(t.Context(), url, options)
	if KindOf(err) != Misconfigured || !strings.Contains(err.Error(), "no such bucket; create it, or set create_bucket") {
		t.Error(err)
	}
	options.Create = true
	open(t, url, options)
	t.Setenv("AWS_SECRET_ACCESS_KEY", "wrong")
	if _, err := Open(t.Context(), url, options); KindOf(err) != Denied {
		t.Error(err)
	}
}

func TestEndpoints(t *testing.T) {
	for endpoint, allowed := range map[string]bool{
		"http://127.0.0.1:9000":        true,
		"http://localhost":             true,
		"http://[::1]:9000/x":          true,
		"https://10.0.0.1":             true,
		"http://10.0.0.1:9000":         false,
		"http://localhost.example.org": false,
		"http://":                      false,
		"minio:9000":                   false,
		"127.0.0.1:9000":               false,
	} {
		if err := checkEndpoint(endpoint, false); (err == nil) != allowed {
			t.Errorf("%s: %v", endpoint, err)
		}
	}
	if err := checkEndpoint("http://10.0.0.1:9000", true); err != nil {
		t.Error(err)
	}
}

// answering is a server that gives every PUT the same answer, and counts them.
func answering(t *testing.T, status int, code string) (*Store, *atomic.Int64) {
	requests := &atomic.Int64{}
	server := httptest.NewServer(http.HandlerFunc(func(response http.ResponseWriter, request *http.Request) {
		if request.Method != http.MethodPut {
			response.WriteHeader(http.StatusNotFound)
			fmt.Fprint(response, "<Error><Code>NoSuchKey</Code></Error>")
			return
		}
		requests.Add(1)
		if status == 0 {
			panic(http.ErrAbortHandler)
		}
		response.WriteHeader(status)
		if code != "" {
			fmt.Fprintf(response, "<Error><Code>%s</Code><Message>in words</Message></Error>", code)
		}
	}))
	t.Cleanup(server.Close)
	t.Setenv("AWS_ACCESS_KEY_ID", "id")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "secret")
	t.Setenv("AWS_MAX_ATTEMPTS", "5")
	return open(t, "s3://bucket/prefix", Options{Endpoint: server.URL}), requests
}

func TestTheMeaningOfS3sAnswers(t *testing.T) {
	version := Version("etag")
	for _, answer := range []struct {
		status          int
		code            string
		create, replace Outcome
		kind            Kind
	}{
		{412, "PreconditionFailed", Mismatch, Mismatch, Transient},
		// Another conditional write was in progress; the store decided nothing.
		{409, "ConditionalRequestConflict", Unknown, Unknown, Transient},
		{404, "NoSuchKey", Unknown, Mismatch, Misconfigured},
		{404, "NoSuchBucket", Unknown, Unknown, Misconfigured},
		{403, "AccessDenied", Unknown, Unknown, Denied},
		{400, "ExpiredToken", Unknown, Unknown, Denied},
		{400, "RequestTimeout", Unknown, Unknown, Transient},
		{400, "InvalidArgument", Unknown, Unknown, Misconfigured},
		{500, "InternalError", Unknown, Unknown, Transient},
		{503, "SlowDown", Unknown, Unknown, Transient},
		// A success without a version cannot be the base of another write.
		{200, "", Unknown, Unknown, Misconfigured},
		// The server closes the connection.
		{0, "", Unknown, Unknown, Transient},
	} {
		store, requests := answering(t, answer.status, answer.code)
		for expected, wanted := range map[*Version]Outcome{nil: answer.create, &version: answer.replace} {
			outcome, _, err := store.CompareAndSet(t.Context(), "k", expected, []byte("x"))
			if outcome != wanted || outcome == Unknown && KindOf(err) != answer.kind {
				t.Errorf("%d %s: %s, %v", answer.status, answer.code, outcome, err)
			}
		}
		if count := requests.Load(); count != 2 {
			t.Errorf("%d %s: %d requests for two attempts", answer.status, answer.code, count)
		}
	}
}

// stsIs gives the process a web identity and a token service that answers with these statuses, the last one again and
// again. Without statuses there are no credentials.
func stsIs(t *testing.T, expiration time.Time, statuses ...int) {
	t.Helper()
	for variable, value := range map[string]string{
		"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "AWS_REGION": "us-east-1",
		"AWS_EC2_METADATA_DISABLED": "true", "AWS_CONFIG_FILE": os.DevNull, "AWS_SHARED_CREDENTIALS_FILE": os.DevNull,
	} {
		t.Setenv(variable, value)
	}
	if len(statuses) == 0 {
		return
	}
	var asked atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		status := statuses[min(int(asked.Add(1)), len(statuses))-1]
		w.Header().Set("Content-Type", "text/xml")
		w.WriteHeader(status)
		if status == http.StatusOK {
			fmt.Fprint(w, `<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleWithWebIdentityResult>`+
				`<Credentials><AccessKeyId>a</AccessKeyId><SecretAccessKey>b</SecretAccessKey><SessionToken>c</SessionToken>`+
				`<Expiration>`+expiration.UTC().Format(time.RFC3339)+`</Expiration></Credentials></AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>`)
		}
	}))
	t.Cleanup(server.Close)
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("AWS_WEB_IDENTITY_TOKEN_FILE", token)
	t.Setenv("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/r")
	t.Setenv("AWS_ENDPOINT_URL_STS", server.URL)
}

// absence answers as a proxy may answer for S3: without its error code.
func absence(t *testing.T) (endpoint string) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusNotFound)
		if strings.Contains(r.URL.Path, "no-bucket") {
			fmt.Fprint(w, "<Error><Code>NoSuchBucket</Code></Error>")
		}
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// The store waits for a token service that is not up yet, and gives up if the service refuses.
func TestTheKindOfAFailureToGetCredentials(t *testing.T) {
	endpoint := absence(t)
	for _, service := range []struct {
		statuses []int
		kind     Kind
	}{
		{[]int{503, 200}, -1},
		{[]int{503}, Transient},
		{[]int{403}, Denied},
		{nil, Misconfigured},
	} {
		t.Run(fmt.Sprint(service.statuses), func(t *testing.T) {
			stsIs(t, time.Now().Add(time.Hour), service.statuses...)
			_, err := Open(t.Context(), "s3://bucket/p", Options{Endpoint: endpoint})
			if kind := KindOf(err); (err == nil) != (service.kind < 0) || err != nil && kind != service.kind {
				t.Error(kind, err)
			}
		})
	}
}

// Credentials that can still be used are renewed early, and kept while the token service does not answer.
func TestCredentialsOutliveATokenServiceThatIsDown(t *testing.T) {
	for _, of := range []struct {
		left time.Duration
		ok   bool
	}{{renewBefore - time.Minute, true}, {-time.Minute, false}} {
		t.Run(of.left.String(), func(t *testing.T) {
			stsIs(t, time.Now().Add(of.left), 200, 503)
			store, err := Open(t.Context(), "s3://bucket/p", Options{Endpoint: absence(t)})
			if of.ok && err != nil {
				t.Fatal(err)
			}
			if err == nil {
				_, _, _, err = store.Get(t.Context(), "absent")
			}
			if (err == nil) != of.ok || KindOf(err) != Transient {
				t.Error(err)
			}
		})
	}
}

// A proxy may answer a GET of an absent object without S3's error code.
func TestAnAbsentObjectBehindAProxyIsAbsent(t *testing.T) {
	t.Setenv("AWS_ACCESS_KEY_ID", "a")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "b")
	options := Options{Endpoint: absence(t), Region: "us-east-1"}
	store, err := Open(t.Context(), "s3://bucket/p", options)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, found, err := store.Get(t.Context(), "absent"); found || err != nil {
		t.Error(found, err)
	}
	if _, err := Open(t.Context(), "s3://no-bucket/p", options); KindOf(err) != Misconfigured {
		t.Error(err)
	}
}
