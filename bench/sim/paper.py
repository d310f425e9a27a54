"""Memento's paper's numbers, by the names of our results: percent, averages over functions unless noted."""

# Averages over functions (Python, C++, Go), with the section or figure they come from.
AVERAGES = {
    "speedup_percent": (16.0, "§6.1, Fig. 8; 8 to 28"),
    "iso_storage_speedup_percent": (3.0, "§6.1"),
    "traffic_saved_percent": (30.0, "§6.2, Fig. 10"),
    "bandwidth_saved_percent": (30.0, "§6.2, Fig. 10, if it is by time"),
    "traffic_saved_by_bypass_percent": (5.0, "§6.2, Fig. 10"),
    "pages_saved_percent": (15.0, "§6.3, Fig. 11"),
    "user_pages_saved_percent": (10.0, "§6.3, Fig. 11"),
    "kernel_pages_saved_percent": (28.0, "§6.3, Fig. 11"),
    "hot.allocation_hits_percent": (99.8, "§6.4, Fig. 12"),
    "hot.free_hits_percent": (83.0, "§6.4, Fig. 12"),
    "lists.allocations_percent": (1.0, "§6.4, Fig. 13: less than"),
    "lists.frees_percent": (0.6, "§6.4, Fig. 13: at most"),
    "inactive_slots_percent": (3.68, "§6.6"),
    "cost_saved_percent": (29.0, "§6.5, Fig. 14"),
    "cost_saved_with_requests_percent": (11.0, "§6.5"),
    "objects.small_percent": (93.0, "§2.2, Fig. 2"),
    "objects.within_16_percent": (71.0, "§2.2, Fig. 3"),
    "objects.never_freed_percent": (27.0, "§2.2, Fig. 3"),
    "objects.small_short_percent": (61.0, "Table 1"),
    "objects.small_long_percent": (32.0, "Table 1"),
    "objects.large_short_percent": (6.55, "Table 1"),
    "objects.large_long_percent": (0.45, "Table 1"),
    "gain_share.object_alloc_percent": (33.0, "§6.1, Fig. 9: of the gain"),
    "gain_share.object_free_percent": (32.0, "§6.1, Fig. 9"),
    "gain_share.page_management_percent": (33.0, "§6.1, Fig. 9"),
    "gain_share.bypass_percent": (2.0, "§6.1, Fig. 9"),
}
# Averages of one group.
GROUPS = {
    ("C++", "mallacc_speedup_percent"): (8.0, "§6.7; 5 to 10"),
    ("C++", "speedup_percent"): (16.0, "§6.7; 12 to 20"),
    ("Data Proc", "speedup_percent"): (7.5, "§6.1; 5 to 11"),
    ("Data Proc", "traffic_saved_percent"): (33.0, "§6.2"),
    ("Data Proc", "pages_saved_percent"): (23.0, "§6.3"),
    ("Python", "management.user_percent"): (48.0, "Table 2"),
    ("C++", "management.user_percent"): (96.0, "Table 2"),
    ("Golang", "management.user_percent"): (56.0, "Table 2"),
    ("Data Proc", "management.user_percent"): (38.0, "Table 2"),
}
FUNCTIONS = ("Python", "C++", "Golang")
