//go:build tools

// Helm's program, pinned by go.mod: what lints and renders the chart.
package helm

import _ "helm.sh/helm/v4/cmd/helm"
