package storage

import (
	"context"
	"errors"
	"time"
)

// Options say how to open a buffer.
type Options struct {
	Endpoint       string        // the S3 service's address when it is not AWS; else the AWS variables and profile are asked
	Region         string        // else the AWS variables and the profile are asked
	AllowHTTP      bool          // allow an endpoint without TLS on another machine; on this one it always is
	RequestTimeout time.Duration // the longest that one request may take; 0: 30 s
	Create         bool          // make the bucket or the directory when it is missing
}

// probe is the key that an opening asks for: it exists in every buffer that was ever written to.
const probe = "buffer"

// Open opens the buffer at a URL and asks the store one question, so that a missing bucket, refused credentials or a
// wrong region show now.
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
