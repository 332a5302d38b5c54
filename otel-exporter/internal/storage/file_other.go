//go:build !unix

package storage

import "errors"

// openDirectory needs a lock and a durable rename, which only Unix guarantees.
func openDirectory(string, bool) (*unsupported, error) {
	return nil, misconfigured(errors.New("file:// works on Unix only"))
}

type unsupported struct{ Backend }
