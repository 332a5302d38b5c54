package storage

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/aws/smithy-go"
)

// A Bucket is a buffer in S3 or a compatible store. Credentials and region come from the AWS SDK's default chain.
type Bucket struct {
	client      *s3.Client
	url         string
	name        string
	prefix      string // empty, or ends with a slash
	region      string
	hasEndpoint bool
}

var errNoBucket = errors.New("there is no such bucket; create it, or set create_bucket")

// defaultRegion serves stores without regions; it is also AWS's first one.
const defaultRegion = "us-east-1"

const (
	connectTimeout = 5 * time.Second
	// S3 closes idle connections after about 20 s. Reusing one at that moment costs an unknown outcome.
	idleTimeout = 15 * time.Second
	// connectionsKept is the number of idle connections worth keeping: for uploads, commits and the self-test's writers.
	connectionsKept = 16
)

func openBucket(ctx context.Context, place place, options Options) (*Bucket, error) {
	load := []func(*config.LoadOptions) error{
		config.WithHTTPClient(httpClient()),
		config.WithCredentialsCacheOptions(func(o *aws.CredentialsCacheOptions) { o.ExpiryWindow = renewBefore }),
	}
	if options.Region != "" {
		load = append(load, config.WithRegion(options.Region))
	}
	loaded, err := config.LoadDefaultConfig(ctx, load...)
	if err != nil {
		return nil, misconfigured(fmt.Errorf("the AWS configuration cannot be read: %w", err))
	}
	loaded.Credentials = aws.NewCredentialsCache(&lastingCredentials{CredentialsProvider: loaded.Credentials})
	bucket := &Bucket{name: place.bucket}
	bucket.url = "s3://" + place.bucket
	if place.path != "" {
		bucket.url += "/" + place.path
		bucket.prefix = place.path + "/"
	}
	bucket.client = s3.NewFromConfig(loaded, func(o *s3.Options) {
		// One attempt: see the package comment.
		o.Retryer = aws.NopRetryer{}
		// Only checksums that the service requires: other stores do not know them, and every object has its own.
		o.RequestChecksumCalculation = aws.RequestChecksumCalculationWhenRequired
		o.ResponseChecksumValidation = aws.ResponseChecksumValidationWhenRequired
		if options.Endpoint != "" {
			o.BaseEndpoint = &options.Endpoint
		}
		bucket.hasEndpoint = o.BaseEndpoint != nil
		if o.Region == "" && bucket.hasEndpoint {
			o.Region = defaultRegion
		}
		// AWS prefers the bucket in the host name, but its certificate does not cover bucket names with dots.
		o.UsePathStyle = bucket.hasEndpoint || strings.Contains(place.bucket, ".")
	})
	used := bucket.client.Options()
	bucket.region = used.Region
	if bucket.region == "" {
		return nil, misconfigured(errors.New("no AWS region is set: set s3_region or AWS_REGION, or choose a profile that has one"))
	}
	if bucket.hasEndpoint {
		if err := checkEndpoint(*used.BaseEndpoint, options.AllowHTTP); err != nil {
			return nil, misconfigured(err)
		}
	}
	if _, err := used.Credentials.Retrieve(ctx); err != nil {
		return nil, credentialsError(err)
	}
	return bucket, nil
}

// renewBefore is the time before their expiry at which credentials are renewed.
const renewBefore = 5 * time.Minute

// lastingCredentials keeps credentials that can still be used while their source does not answer. Their cache calls one
// method at a time.
type lastingCredentials struct {
	aws.CredentialsProvider           // says that credentials expire renewBefore their time
	expires                 time.Time // of the last ones
}

func (l *lastingCredentials) Retrieve(ctx context.Context) (aws.Credentials, error) {
	retrieved, err := l.CredentialsProvider.Retrieve(ctx)
	if err == nil {
		l.expires = retrieved.Expires.Add(renewBefore)
	}
	return retrieved, err
}

// HandleFailToRefresh returns the last credentials, to be renewed a little later, until they expire.
func (l *lastingCredentials) HandleFailToRefresh(_ context.Context, last aws.Credentials, err error) (aws.Credentials, error) {
	now := time.Now()
	if !last.HasKeys() || now.After(l.expires) {
		return aws.Credentials{}, err
	}
	last.Expires = now.Add(10 * time.Second)
	return last, nil
}

// credentialsError classifies a failure to retrieve credentials. A failure of the last source in the chain, a machine's
// metadata service, is final: most machines have none, and waiting does not help.
func credentialsError(err error) error {
	var operation *smithy.OperationError
	isMetadata := errors.As(err, &operation) && operation.ServiceID == "ec2imds"
	var network net.Error
	status, _ := answer(err)
	if status == 0 && (isMetadata || !errors.As(err, &network)) {
		return misconfigured(fmt.Errorf("no AWS credentials were found; whatever works for `aws s3 ls` works here: %w", err))
	}
	return fmt.Errorf("the AWS credentials could not be retrieved: %w", s3Error(err))
}

func httpClient() *awshttp.BuildableClient {
	return awshttp.NewBuildableClient().
		WithDialerOptions(func(dialer *net.Dialer) { dialer.Timeout = connectTimeout }).
		WithTransportOptions(func(transport *http.Transport) {
			transport.IdleConnTimeout = idleTimeout
			transport.MaxIdleConnsPerHost = connectionsKept
		})
}

// checkEndpoint rejects an invalid address, and one that would send data unencrypted over a network.
func checkEndpoint(endpoint string, allowHTTP bool) error {
	address, err := url.Parse(endpoint)
	if err != nil || address.Host == "" || address.Scheme != "http" && address.Scheme != "https" {
		return fmt.Errorf("the S3 endpoint %q must start with https:// or http:// and name a host", endpoint)
	}
	if address.Scheme == "https" || allowHTTP || address.Hostname() == "localhost" {
		return nil
	}
	if ip := net.ParseIP(address.Hostname()); ip != nil && ip.IsLoopback() {
		return nil
	}
	return fmt.Errorf("the S3 endpoint %q has no TLS and is on another machine: use https://, or set allow_http", endpoint)
}

// URL is the URL of the bucket and prefix.
func (b *Bucket) URL() string { return b.url }

func (b *Bucket) key(key string) *string { return aws.String(b.prefix + key) }

// Get reads an object, or returns ErrAbsent.
func (b *Bucket) Get(ctx context.Context, key string, bytesMax int64) ([]byte, Version, error) {
	output, err := b.client.GetObject(ctx, &s3.GetObjectInput{Bucket: &b.name, Key: b.key(key)})
	if err != nil {
		// A proxy may answer without S3's error code.
		if status, code := answer(err); status == http.StatusNotFound && code != "NoSuchBucket" {
			return nil, "", ErrAbsent
		}
		return nil, "", s3Error(err)
	}
	defer output.Body.Close()
	if length := aws.ToInt64(output.ContentLength); length > bytesMax {
		return nil, "", tooLarge(length, bytesMax)
	}
	body, err := io.ReadAll(io.LimitReader(output.Body, bytesMax+1))
	if err != nil {
		return nil, "", transient(err)
	}
	if length := int64(len(body)); length > bytesMax {
		return nil, "", tooLarge(length, bytesMax)
	}
	version, err := etag(output.ETag)
	return body, version, err
}

// Create writes an object, or returns ErrRefused if it exists.
func (b *Bucket) Create(ctx context.Context, key string, body Body) (Version, error) {
	return b.put(ctx, &s3.PutObjectInput{Key: b.key(key), IfNoneMatch: aws.String("*")}, body)
}

// Replace writes an object, or returns ErrRefused if its version is not the expected one.
func (b *Bucket) Replace(ctx context.Context, key string, expected Version, body Body) (Version, error) {
	return b.put(ctx, &s3.PutObjectInput{Key: b.key(key), IfMatch: aws.String(string(expected))}, body)
}

func (b *Bucket) put(ctx context.Context, input *s3.PutObjectInput, body Body) (Version, error) {
	input.Bucket = &b.name
	input.Body = body.Reader()
	input.ContentLength = aws.Int64(body.Len())
	output, err := b.client.PutObject(ctx, input)
	if err != nil {
		return "", s3Refusal(err, input.IfMatch != nil)
	}
	return etag(output.ETag)
}

func etag(found *string) (Version, error) {
	if aws.ToString(found) == "" {
		return "", misconfigured(errors.New("the store returns no version (no ETag in its answer), so compare-and-set is impossible"))
	}
	return Version(*found), nil
}

// List returns the keys of all objects in a folder.
func (b *Bucket) List(ctx context.Context, folder string) ([]string, error) {
	var keys []string
	pages := s3.NewListObjectsV2Paginator(b.client, &s3.ListObjectsV2Input{
		Bucket: &b.name, Prefix: b.key(folder + "/"),
	})
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return nil, s3Error(err)
		}
		for _, object := range page.Contents {
			keys = append(keys, strings.TrimPrefix(aws.ToString(object.Key), b.prefix))
		}
	}
	return keys, nil
}

// Delete deletes an object.
func (b *Bucket) Delete(ctx context.Context, key string) error {
	_, err := b.client.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: &b.name, Key: b.key(key)})
	return s3Error(err)
}

// create creates the bucket. It succeeds if this account already owns it.
func (b *Bucket) create(ctx context.Context) error {
	input := &s3.CreateBucketInput{Bucket: &b.name}
	if b.region != defaultRegion {
		input.CreateBucketConfiguration = &types.CreateBucketConfiguration{
			LocationConstraint: types.BucketLocationConstraint(b.region),
		}
	}
	_, err := b.client.CreateBucket(ctx, input)
	var own *types.BucketAlreadyOwnedByYou
	if err == nil || errors.As(err, &own) {
		return nil
	}
	return fmt.Errorf("cannot create the bucket %q for %s: %w", b.name, b.url, s3Error(err))
}

// s3Refusal distinguishes a condition that does not hold from a write that the store did not decide.
//
// A 409 (ConditionalRequestConflict) is no decision: another conditional write to the key was in progress, and the
// store did not evaluate the condition.
func s3Refusal(err error, replaces bool) error {
	status, code := answer(err)
	if status == http.StatusPreconditionFailed {
		return ErrRefused
	}
	if replaces && status == http.StatusNotFound && code != "NoSuchBucket" {
		return ErrRefused
	}
	return s3Error(err)
}

// answer returns the HTTP status and S3's error code; zero if there was no answer.
func answer(err error) (status int, code string) {
	var response *awshttp.ResponseError
	if errors.As(err, &response) {
		status = response.HTTPStatusCode()
	}
	var api smithy.APIError
	if errors.As(err, &api) {
		code = api.ErrorCode()
	}
	return status, code
}

// s3Error classifies a failed request and keeps the server's message.
func s3Error(err error) error {
	if err == nil || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return err
	}
	status, code := answer(err)
	told := err
	var api smithy.APIError
	if errors.As(err, &api) && status != 0 {
		told = fmt.Errorf("%d %s: %s", status, api.ErrorCode(), api.ErrorMessage())
	}
	switch {
	case code == "NoSuchBucket":
		return misconfigured(errNoBucket)
	case status == 401, status == 403, code == "ExpiredToken":
		return denied(told)
	case status == 408, status == 409, status == 429, code == "RequestTimeout":
		return transient(told)
	case status >= 300 && status < 500, status == 501:
		return misconfigured(told)
	}
	return transient(told)
}
