//! Columns compared with the server's own blocks.

use super::*;
use crate::frame::decompress;

fn written(column: &impl Column) -> Vec<u8> {
    let mut frames = Frames::default();
    column.write(&mut frames);
    decompress(&frames.finish().0)
}

fn hex(text: &str) -> Vec<u8> {
    (0..text.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap())
        .collect()
}

/// ClickHouse 26.9's output for the same block (`FORMAT Native`).
#[test]
fn a_block_is_what_the_server_writes() {
    let mut time = Ticks::default();
    let mut text = Strings::default();
    let mut word = Dictionary::default();
    let mut map = Maps::default();
    for row in 0..3 {
        time.0.push(1_704_067_200_500_000_000);
        text.push(b"abc");
        word.push([b"x", b"y", b"x"][row]);
        for entry in 0..row {
            map.keys.push([b"k1", b"k2"][entry]);
            map.values.push([b"v1", b"v2"][entry]);
        }
        map.end_row();
    }
    let mut frames = Frames::default();
    write_block_head(4, 3, &mut frames);
    write_column_head("ts", "DateTime64(9)", &mut frames);
    time.write(&mut frames);
    write_column_head("s", "String", &mut frames);
    text.write(&mut frames);
    write_column_head("lc", "LowCardinality(String)", &mut frames);
    word.write(&mut frames);
    write_column_head("m", "Map(LowCardinality(String), String)", &mut frames);
    map.write(&mut frames);
    let expected = "04030274730d4461746554696d6536342839290065321f1710a6170065321f1710a6170065321f1710a617\
                    017306537472696e67036162630361626303616263026c63164c6f7743617264696e616c69747928537472\
                    696e672901000000000000000006000000000000030000000000000000017801790300000000000000010201\
                    016d234d6170284c6f7743617264696e616c69747928537472696e67292c20537472696e67290100000000000\
                    0000000000000000000010000000000000003000000000000000006000000000000030000000000000000026b31\
                    026b320300000000000000010102027631027631027632";
    assert_eq!(decompress(&frames.finish().0), hex(expected));
}

#[test]
fn maps_without_any_entry_have_no_dictionary() {
    let mut map = Maps::default();
    map.end_row();
    map.end_row();
    assert_eq!(
        written(&map),
        hex(&format!("0100000000000000{}", "00".repeat(16)))
    );
}

#[test]
fn numbers_of_a_dictionary_widen_with_it() {
    for (values, width, bytes) in [(256, 0, 1), (257, 1, 2), (65_536, 1, 2), (65_537, 2, 4)] {
        let mut column = Dictionary::default();
        for value in 1..values {
            column.push(format!("{value:05}").as_bytes());
        }
        let written = written(&column);
        assert_eq!(written[8..16], (0x600u64 | width).to_le_bytes());
        assert_eq!(written[16..24], (values as u64).to_le_bytes());
        assert_eq!(
            written.len(),
            8 + 8 + 8 + 1 + (values - 1) * 6 + 8 + (values - 1) * bytes
        );
    }
}

#[test]
fn rows_can_be_taken_from_a_column() {
    let mut map = Maps::default();
    for row in 0..5u8 {
        for entry in 0..row {
            map.keys.push(&[b'k', entry]);
            map.values.push(&[row, entry]);
        }
        map.end_row();
    }
    let mut taken = Maps::default();
    taken.append(&map, &[3, 1]);
    let mut expected = Maps::default();
    for row in [3u8, 1] {
        for entry in 0..row {
            expected.keys.push(&[b'k', entry]);
            expected.values.push(&[row, entry]);
        }
        expected.end_row();
    }
    assert_eq!(written(&taken), written(&expected));
}

#[test]
fn a_constant_fills_every_row() {
    let mut frames = Frames::default();
    write_constant(&[1, 2], 5000, &mut frames);
    assert_eq!(decompress(&frames.finish().0), [1, 2].repeat(5000));
}

#[test]
fn an_order_is_cut_into_runs_of_neighbours() {
    let found = |order: &[u32]| runs(order).collect::<Vec<_>>();
    assert!(found(&[]).is_empty());
    assert_eq!(found(&[4, 5, 6, 2, 3, 1, 0]), [4..7, 2..4, 1..2, 0..1]);
}

#[test]
fn rows_are_written_in_any_order() {
    let mut maps = Maps::default();
    let mut expected = Maps::default();
    let order: [u32; 7] = [2, 3, 4, 0, 6, 5, 1];
    for key in 0..7_u8 {
        maps.keys.number(&[key]);
        expected.keys.number(&[key]);
    }
    for (map, rows) in [(&mut maps, [0, 1, 2, 3, 4, 5, 6]), (&mut expected, order)] {
        for row in rows {
            for entry in 0..row % 3 {
                map.keys.push(&entry.to_le_bytes()[..1]);
                map.values.push(format!("{row} {entry}").as_bytes());
            }
            map.end_row();
        }
    }
    let mut frames = Frames::default();
    maps.write_in(Some(&order), &mut frames);
    assert_eq!(decompress(&frames.finish().0), written(&expected));
    maps.values.write_in(Some(&[2, 3, 0]), &mut frames);
    let mut strings = Strings::default();
    strings.append(&maps.values, &[2, 3, 0]);
    assert_eq!(decompress(&frames.finish().0), written(&strings));
}
