//! Machine descriptions: every number can be overridden, and impossible machines are refused with one line.

use sim::Description;

fn load(overrides: &[&str]) -> Result<Description, String> {
    Description::load("table3", &overrides.iter().map(|item| item.to_string()).collect::<Vec<_>>())
}

#[test]
fn the_table_of_the_paper() {
    let machine = load(&[]).unwrap();
    let kib = |cache: &sim::base::description::CacheDescription| cache.sets * cache.ways * 64 / 1024;
    assert_eq!((machine.core.frequency_mhz, machine.core.width), (3000, 4));
    assert_eq!((machine.core.rob_entries, machine.core.lsq_entries), (256, 64));
    assert_eq!((kib(&machine.l1d), machine.l1d.ways, machine.l1d.latency_cycles), (32, 8, 2));
    assert_eq!((kib(&machine.l1i), machine.l1i.ways, machine.l1i.latency_cycles), (32, 8, 2));
    assert_eq!((kib(&machine.l2), machine.l2.ways, machine.l2.latency_cycles), (256, 8, 14));
    assert_eq!((kib(&machine.llc), machine.llc.ways, machine.llc.latency_cycles), (2048, 16, 40));
    assert_eq!((machine.tlb.l1_sets * machine.tlb.l1_ways, machine.tlb.l1_ways), (64, 4));
    assert_eq!((machine.tlb.l2_sets * machine.tlb.l2_ways, machine.tlb.l2_ways), (2040, 12));
    assert_eq!((machine.dram.clock_mhz, machine.dram.bank_groups * machine.dram.banks_per_group), (1600, 16));
}

#[test]
fn every_number_can_be_overridden() {
    let table = toml::Table::try_from(load(&[]).unwrap()).unwrap();
    let mut seen = 0;
    for (section, inner) in table.iter().filter_map(|(name, value)| Some((name, value.as_table()?))) {
        for (key, value) in inner {
            let Some(new) = value.as_integer().map(|number| number * 2) else { continue };
            let changed = load(&[&format!("{section}.{key}={new}")]);
            if let Ok(changed) = changed {
                let changed = toml::Table::try_from(&changed).unwrap();
                assert_eq!(changed[section][key].as_integer(), Some(new), "{section}.{key}");
                seen += 1;
            }
        }
    }
    assert!(seen > 60, "{seen} keys took twice their value");
    assert_eq!(load(&["l1d.ways=9"]).unwrap().l1d.ways, 9);
    assert_eq!(Description::load("iso-storage", &[]).unwrap().l1d.ways, 9);
    assert!(Description::load("mallacc", &[]).unwrap().core.ideal_allocator);
    assert!(load(&["core.ideal_allocator=true"]).unwrap().core.ideal_allocator);
    assert!(load(&["memento.bypass=false"]).is_err(), "this machine has no Memento");
    let machine = Description::load("memento", &["memento.bypass=false".to_owned()]).unwrap();
    assert!(!machine.memento.as_ref().unwrap().bypass);
    let text = toml::to_string(&machine).unwrap();
    assert_eq!(Description::parse(&text, &[]).unwrap(), machine, "a written description is read again");
}

#[test]
fn mistakes_get_one_line() {
    let cases: &[(&[&str], &str)] = &[
        (&["l1d.wayz=9"], "unknown key l1d.wayz: there are cycles_per_access, latency_cycles"),
        (&["l1x.ways=9"], "unknown key l1x.ways: there are branch, core"),
        (&["l1d=9"], "l1d is a section"),
        (&["l1d.ways"], "`l1d.ways` is not KEY=VALUE"),
        (&["l1d.ways=many"], "l1d.ways=many: a whole number is needed"),
        (&["l1d.ways=0"], "l1d.ways = 0"),
        (&["l1d.sets=48"], "l1d.sets = 48: a power of two"),
        (&["l2.latency_cycles=1"], "l2.latency_cycles is less than"),
        (&["core.width=-1"], "integer `-1`"),
        (&["core.rob_entries=0"], "core.rob_entries = 0"),
    ];
    for (overrides, expected) in cases {
        let message = load(overrides).unwrap_err();
        assert!(message.contains(expected), "{overrides:?}: {message}");
        assert!(!message.contains('\n'), "{message}");
    }
    assert!(Description::load("table4", &[]).unwrap_err().starts_with("no machine table4: there are table3"));
    assert!(Description::load("no/such.toml", &[]).unwrap_err().starts_with("machine file no/such.toml: "));
    let message = Description::parse("name = 'x'\n[core]\nspeed = 3", &[]).unwrap_err();
    assert!(message.starts_with("line 3: unknown key core.speed: there are branch_ports, "), "{message}");
}

#[test]
fn a_file_inherits_its_base() {
    let folder = std::env::temp_dir().join(format!("machines-{}", std::process::id()));
    std::fs::create_dir_all(folder.join("inner")).unwrap();
    let write = |name: &str, text: &str| {
        std::fs::write(folder.join(name), text).unwrap();
        folder.join(name).display().to_string()
    };
    let wide = write("wide.toml", "# a comment\n[core]\nwidth = 8\n");
    let machine = Description::load(&wide, &["l1d.ways=9".to_owned()]).unwrap();
    assert_eq!((machine.core.width, machine.l1d.ways, &*machine.name), (8, 9, "wide"));
    assert_eq!((machine.core.rob_entries, machine.l2.sets), (256, 512), "the others are Table 3's");
    assert!(machine.memento.is_none());
    let text = "name = 'mine'\nbase = '../wide.toml'\n[memento]\nbypass = false\n";
    let machine = Description::load(&write("inner/mine.toml", text), &[]).unwrap();
    assert_eq!((machine.core.width, &*machine.name), (8, "mine"), "a file inherits a file");
    assert!(!machine.memento.unwrap().bypass, "a unit that the other lacks");
    let machine =
        Description::load(&write("memento.toml", "base = 'memento'\n[l1d]\nways = 4\n"), &[]).unwrap();
    let built_in = Description::load("memento", &[]).unwrap();
    assert_eq!((machine.l1d.ways, machine.memento), (4, built_in.memento));

    write("circle.toml", "base = 'circle.toml'\n");
    let cases = [
        ("[l1d]\nways = 8\nwayz = 9", "line 3: unknown key l1d.wayz: there are cycles_per_access, latency"),
        ("\n[l1x]\nways = 8", "line 2: unknown section [l1x]: there are branch, core, "),
        (
            "[l1d]\nsets = 64\n\nways = 'many'",
            "line 4: l1d.ways: invalid type: string \"many\", expected usize",
        ),
        ("[core]\nwidth = -1", "line 2: core.width: invalid value: integer `-1`, expected u32"),
        ("[l1d]\nsets = 64\nways = 0", "line 3: l1d.ways = 0: 1 to 64"),
        ("[l1d]\nlatency_cycles = 99", "line 2: l2.latency_cycles is less than l1d.latency_cycles"),
        ("[l1d]\nways = 8\nways = 9", "line 3: duplicate key"),
        ("[l1d]\nways == 8", "line 2: "),
        ("width = 8", "line 1: unknown key width: there are base, name and sections"),
        ("base = 'table4'", "base = \"table4\": "),
        ("base = 'circle.toml'", "more than 8 files inherit one another"),
    ];
    for (text, expected) in cases {
        let message = Description::load(&write("wrong.toml", text), &[]).unwrap_err();
        assert!(
            message.contains(&format!("wrong.toml: {expected}")) || message.ends_with(expected),
            "{message}"
        );
        assert!(!message.contains('\n'), "{message}");
    }
    std::fs::remove_dir_all(&folder).unwrap();
}
