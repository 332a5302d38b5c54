package storage

import (
	"fmt"
	"regexp"
	"strings"
)

// A place is the location of a buffer.
type place struct {
	scheme string // s3, file or memory
	bucket string
	path   string // prefix in the bucket, without slashes at its ends; or the directory
}

var bucketName = regexp.MustCompile(`^[A-Za-z0-9._:-]+$`)

// parseURL parses a buffer's URL. It takes paths and prefixes literally: %20 is three characters.
func parseURL(url string) (place, error) {
	refuse := func(format string, arguments ...any) (place, error) {
		return place{}, fmt.Errorf("%q is not a buffer URL for this producer: %s; write s3://bucket/prefix or file:///dir",
			url, fmt.Sprintf(format, arguments...))
	}
	scheme, rest, found := strings.Cut(url, "://")
	if !found {
		return refuse("it has no scheme")
	}
	switch scheme {
	case "s3":
		bucket, prefix, _ := strings.Cut(rest, "/")
		if !bucketName.MatchString(bucket) {
			return refuse("%q is not the name of a bucket", bucket)
		}
		if strings.ContainsAny(prefix, "?#") {
			return refuse("a prefix has no ? and no #; settings are options, not a part of the URL")
		}
		prefix = strings.TrimRight(prefix, "/")
		for _, part := range strings.Split(prefix, "/") {
			if prefix != "" && (part == "" || part == "." || part == "..") {
				return refuse("its prefix is not a valid key")
			}
		}
		return place{"s3", bucket, prefix}, nil
	case "file":
		directory := strings.TrimRight(rest, "/")
		if !strings.HasPrefix(rest, "/") {
			return refuse("a directory needs an absolute path after three slashes, file:///dir")
		}
		if directory == "" {
			return refuse("it names no directory")
		}
		return place{"file", "", directory}, nil
	case "memory":
		if rest != "" && rest != "/" {
			return refuse("memory:/// takes no path")
		}
		return place{scheme: "memory"}, nil
	case "gs", "az":
		return refuse("it does not support Google's and Azure's stores; send to a `millpond gateway`, which does")
	}
	return refuse("the scheme %q is unknown", scheme)
}

// CheckURL validates a buffer's URL.
func CheckURL(url string) error {
	_, err := parseURL(url)
	return err
}
