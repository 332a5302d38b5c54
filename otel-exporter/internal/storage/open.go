package storage

import (
	"context"
	"errors"
	"time"
)

// Options configure how to open a buffer.
type Options struct {
	Endpoint       string        // of an S3 service other than AWS; default: the AWS variables and profile
	Region         string        // default: the AWS variables and profile
	AllowHTTP      bool          // allow an endpoint without TLS on another machine; a local one is always allowed
	RequestTimeout time.Duration // time limit of one request; 0: 30 s
	Create         bool          // create a missing bucket or directory
}

// probe is the key that Open reads: every buffer that was ever written to has it.
const probe = "buffer"

// Open opens the buffer at a URL. It makes one request, so that a missing bucket, refused credentials or a wrong region
// fail early.
func Open(ctx context.Context, url string, options Options) (*Store, error) {
	if options.RequestTimeout == 0 {
		options.RequestTimeout = RequestTimeout
	}
	place, err := parseURL(url)
	if err != nil {
		return nil, misconfigured(err)
	}
	switch place.scheme {
	case "memory":
		return Over(NewMemory(), options.RequestTimeout), nil
	case "file":
		directory, err := openDirectory(place.path, options.Create)
		if err != nil {
			return nil, err
		}
		return Over(directory, options.RequestTimeout), nil
	}
	bucket, err := openBucket(ctx, place, options)
	if err != nil {
		return nil, err
	}
	store := Over(bucket, options.RequestTimeout)
	_, _, _, err = store.Get(ctx, probe)
	if errors.Is(err, errNoBucket) && options.Create {
		err = bucket.create(ctx)
	}
	if err != nil {
		return nil, err
	}
	return store, nil
}
