def pytest_addoption(parser):
    parser.addoption("--operations", type=int, default=400_000, help="random calls of each seed (400 000)")
    parser.addoption("--seeds", type=int, default=2, help="how many (2)")
