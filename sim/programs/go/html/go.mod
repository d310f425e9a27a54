module example.org/html

go 1.19
