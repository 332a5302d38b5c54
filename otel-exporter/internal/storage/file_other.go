//go:build !unix

package storage

import "errors"

// openDirectory needs a lock and a durable rename, which are known of Unix only.
func openDirectory(string, bool) (*unsupported, error) {
	return nil, misconfigured(errors.New("file:// is for Unix only"))
}

type unsupported struct{ Backend }
