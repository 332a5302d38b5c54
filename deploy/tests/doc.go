// Package deploy tests the files in deploy/: against the program whose flags they use, and with the code of their
// readers (Helm, Kubernetes' types, Compose, BuildKit). It starts no container and no cluster.
package deploy
