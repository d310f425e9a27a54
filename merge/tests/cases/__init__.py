"""The tests of page merging, by what they try. Each module has TESTS: name -> function(built, options)."""
