//go:build tools

// Package parsers names what is built from other modules: Podman's own reader of quadlets.
package parsers

import _ "github.com/containers/podman/v5/cmd/quadlet"
