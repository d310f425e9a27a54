module example.org/heap

go 1.19
