// Says what a Nomad job is, as the parser reads it that Nomad itself uses: job NAME, its type, and each task's command line.
package main

import (
	"fmt"
	"os"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsimple"
)

type task struct {
	Name   string   `hcl:"name,label"`
	Driver string   `hcl:"driver"`
	Config config   `hcl:"config,block"`
	Rest   hcl.Body `hcl:",remain"`
}

type config struct {
	Command string   `hcl:"command"`
	Args    []string `hcl:"args"`
}

type group struct {
	Name  string   `hcl:"name,label"`
	Tasks []task   `hcl:"task,block"`
	Rest  hcl.Body `hcl:",remain"`
}

type job struct {
	Name   string   `hcl:"name,label"`
	Type   string   `hcl:"type"`
	Groups []group  `hcl:"group,block"`
	Rest   hcl.Body `hcl:",remain"`
}

func main() {
	var file struct {
		Job job `hcl:"job,block"`
	}
	text, err := os.ReadFile(os.Args[1])
	if err == nil {
		err = hclsimple.Decode("job.hcl", text, nil, &file)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println("job", file.Job.Name, file.Job.Type)
	for _, group := range file.Job.Groups {
		for _, task := range group.Tasks {
			fmt.Println("task", task.Name, task.Driver, task.Config.Command, task.Config.Args)
		}
	}
}
