package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/google/uuid"
)

const user, password = "millpond-bench", "millpond-bench-secret"

// credentials is the environment that the AWS SDK reads.
var credentials = []string{
	"AWS_ACCESS_KEY_ID=" + user, "AWS_SECRET_ACCESS_KEY=" + password, "AWS_REGION=us-east-1", "AWS_EC2_METADATA_DISABLED=true",
}

// startPatience is the time limit for a server to start serving.
const startPatience = 2 * time.Minute

// servers are MinIO and a Kafka broker. Their data directory disappears when they stop.
type servers struct {
	kafka, s3 string
	directory string
	running   []*exec.Cmd
}

// startServers starts MinIO and, if a candidate needs it, Kafka.
func startServers(ctx context.Context, needsKafka bool) (*servers, error) {
	minio, kafka := os.Getenv("MILLPOND_MINIO"), os.Getenv("MILLPOND_KAFKA")
	if minio == "" || needsKafka && kafka == "" {
		return nil, errors.New("MILLPOND_MINIO or MILLPOND_KAFKA is not set: run make bench-exporter")
	}
	directory, err := os.MkdirTemp("", "millpond-bench-")
	if err != nil {
		return nil, err
	}
	s := &servers{directory: directory}
	err = s.startMinio(ctx, minio)
	if err == nil && needsKafka {
		err = s.startKafka(ctx, kafka)
	}
	if err != nil {
		s.stop()
		return nil, err
	}
	return s, nil
}

func (s *servers) stop() {
	for _, server := range s.running {
		_ = server.Process.Kill()
		_ = server.Wait()
	}
	_ = os.RemoveAll(s.directory)
}

// start starts a server that logs to a file beside its data.
func (s *servers) start(name string, command *exec.Cmd) error {
	log, err := os.Create(filepath.Join(s.directory, name+".log"))
	if err != nil {
		return err
	}
	defer log.Close()
	command.Stdout, command.Stderr = log, log
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := command.Start(); err != nil {
		return err
	}
	s.running = append(s.running, command)
	return nil
}

func (s *servers) buckets() string { return filepath.Join(s.directory, "buckets") }
func (s *servers) topics() string  { return filepath.Join(s.directory, "topics") }

func (s *servers) startMinio(ctx context.Context, program string) error {
	address, err := freeAddress()
	if err != nil {
		return err
	}
	s.s3 = "http://" + address
	minio := exec.Command(program, "server", "--quiet", "--address", address, s.buckets())
	minio.Env = append(os.Environ(), "MINIO_ROOT_USER="+user, "MINIO_ROOT_PASSWORD="+password,
		"MINIO_BROWSER=off", "MINIO_UPDATE=off", "CI=true")
	if err := s.start("minio", minio); err != nil {
		return err
	}
	return patiently(ctx, "MinIO", func() error {
		answer, err := http.Get(s.s3 + "/minio/health/cluster")
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		if answer.StatusCode != http.StatusOK {
			return errors.New(answer.Status)
		}
		return nil
	})
}

// makeBucket creates a bucket, because the S3 exporter does not.
func (s *servers) makeBucket(ctx context.Context, name string) error {
	client := s3.New(s3.Options{
		BaseEndpoint: &s.s3,
		Region:       "us-east-1",
		UsePathStyle: true,
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: user, SecretAccessKey: password}, nil
		}),
	})
	_, err := client.CreateBucket(ctx, &s3.CreateBucketInput{Bucket: &name})
	return err
}

// startKafka starts a single broker that is also the controller.
func (s *servers) startKafka(ctx context.Context, jars string) error {
	broker, err := freeAddress()
	if err != nil {
		return err
	}
	controller, err := freeAddress()
	if err != nil {
		return err
	}
	s.kafka = broker
	settings := fmt.Sprintf(`process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=%[2]s
listeners=PLAINTEXT://%[1]s,CONTROLLER://%[2]s
advertised.listeners=PLAINTEXT://%[1]s,CONTROLLER://%[2]s
controller.listener.names=CONTROLLER
log.dirs=%[3]s
num.partitions=1
offsets.topic.replication.factor=1
`, broker, controller, s.topics())
	file := filepath.Join(s.directory, "server.properties")
	if err := os.WriteFile(file, []byte(settings), 0o600); err != nil {
		return err
	}
	java := func(arguments ...string) *exec.Cmd {
		return exec.Command("java", append([]string{"-Xmx1g", "-cp", filepath.Join(jars, "*")}, arguments...)...)
	}
	format := java("kafka.tools.StorageTool", "format", "--standalone", "-t", uuid.NewString(), "-c", file)
	if output, err := format.CombinedOutput(); err != nil {
		return fmt.Errorf("kafka.tools.StorageTool: %w: %s", err, output)
	}
	if err := s.start("kafka", java("kafka.Kafka", file)); err != nil {
		return err
	}
	return patiently(ctx, "Kafka", func() error {
		connection, err := net.Dial("tcp", broker)
		if err != nil {
			return err
		}
		return connection.Close()
	})
}

// stored is the number of bytes that a run left on the servers' disks.
func (s *servers) stored(candidate candidate, name string) (int64, error) {
	if candidate.alone != nil {
		return 0, nil
	}
	var total int64
	for _, place := range []string{filepath.Join(s.buckets(), name), filepath.Join(s.topics(), name+"-0")} {
		err := filepath.WalkDir(place, func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || filepath.Base(filepath.Dir(path)) == name+"-0" && filepath.Ext(path) != ".log" {
				return err
			}
			info, err := entry.Info()
			if err == nil {
				total += info.Size()
			}
			return err
		})
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return 0, err
		}
	}
	return total, nil
}

func freeAddress() (string, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return listener.Addr().String(), listener.Close()
}

func patiently(ctx context.Context, what string, attempt func() error) error {
	ctx, end := context.WithTimeout(ctx, startPatience)
	defer end()
	for {
		err := attempt()
		if err == nil {
			return nil
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("%s does not serve: %w", what, err)
		}
	}
}
