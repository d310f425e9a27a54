# The agent on every client of Nomad, beside its Docker or Podman driver: nomad job run deploy/nomad/mayfly-node.nomad.hcl
# Tasks then request by CDI, if their driver takes device names: devices = ["mayfly.dev/heap=online"].
job "mayfly-node" {
  type = "system"

  constraint {
    attribute = "${attr.kernel.name}"
    value     = "linux"
  }

  group "agent" {
    network {
      port "metrics" {
        static = 9117
      }
    }

    task "agent" {
      # From the Debian package; the agent needs the host's cgroups, processes and /etc/cdi.
      driver = "raw_exec"

      config {
        command = "/usr/bin/mayfly"
        args    = ["node", "--nri", "none", "--domain", "web"]
      }

      resources {
        cpu    = 50
        memory = 256
      }

      service {
        name     = "mayfly-node"
        port     = "metrics"
        provider = "nomad"

        check {
          type     = "http"
          path     = "/healthz"
          interval = "20s"
          timeout  = "5s"
        }
      }
    }
  }
}
