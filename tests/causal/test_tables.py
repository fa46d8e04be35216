"""Users' data: frames, CSV files, and refused values with their place."""

import warnings

import numpy as np
import pytest

from frugax import causal
from frugax.causal import Samples
from refusals import refuses

COLUMNS = {"a b": [1.0, 2.0, 3.0], "y": [0.5, None, "0.25"], "changed": ["", "y", None]}


def same(samples, variables=("a b", "y")):
    assert samples.variables == variables
    np.testing.assert_array_equal(samples.values, [[1, 0.5], [2, np.nan], [3, 0.25]])
    np.testing.assert_array_equal(
        samples.intervened, [[False, False], [False, True], [False, False]]
    )
    assert samples.values.dtype == np.float32


def test_a_dict_of_columns():
    same(Samples.from_frame(COLUMNS, intervened="changed"))


@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow", "narwhals"])
def test_frames_of_every_library(library):
    columns = {**COLUMNS, "y": [0.5, None, 0.25]}
    if library == "narwhals":
        pandas = pytest.importorskip("pandas")
        narwhals = pytest.importorskip("narwhals")
        frame = narwhals.from_native(pandas.DataFrame(columns))
    elif library == "pyarrow":
        frame = pytest.importorskip("pyarrow").table(columns)
    else:
        frame = pytest.importorskip(library).DataFrame(columns)
    same(Samples.from_frame(frame, intervened="changed"))


def test_missing_values_and_integers_of_pandas_are_read():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(
        {
            "a b": pandas.array([1, 2, 3], "Int64"),
            "y": pandas.array([0.5, pandas.NA, 0.25], "Float64"),
            "changed": pandas.array([pandas.NA, "y", pandas.NA], "string"),
        },
        index=[7, 8, 9],
    )
    same(Samples.from_frame(frame, intervened="changed"))


class Lazy:
    columns = ("x",)

    def collect(self):
        raise AssertionError("nobody asked for it")


class Renamed:
    """Has columns, but not what `column_names` or a mapping says."""

    columns = ("x", 3)


@pytest.mark.parametrize(
    ("frame", "error", "named"),
    [
        (Lazy(), TypeError, "frame.collect"),
        (Renamed(), TypeError, 3),
        (np.zeros((3, 2)), TypeError, "Samples"),
        ({}, ValueError, "variables"),
        ({"x": [1.0], "y": [1.0, 2.0]}, ValueError, "'x'"),
        ({"x": ["1", "high"]}, ValueError, "'x'"),
        ({"x": ["1_000"]}, ValueError, "'x'"),
        ({"x": np.zeros((2, 2))}, ValueError, "'x'"),
        ({"x": 3.0}, ValueError, "'x'"),
        ({"x": "abc"}, ValueError, "'x'"),
        (
            {"x": [1.0, 1e39]},
            ValueError,
            "'x'",
        ),
        (
            {"x": np.linspace(0, 1, 9) + 1.7e9},
            ValueError,
            "'x'",
        ),
        (
            {"x": [1e-160, 2e-160]},
            ValueError,
            "'x'",
        ),
        ({"x": [1.0, float("inf")]}, ValueError, "'x'"),
    ],
)
def test_an_invalid_table_is_refused(frame, error, named):
    with refuses(error, named):
        Samples.from_frame(frame)


def test_values_far_from_zero_are_accepted_where_float32_can_separate_them():
    for values in ([300.0, 300.01, 300.02, 300.005], [1.7e9, 1.7e9 + 9e4], [1e-160]):
        assert len(Samples.from_frame({"x": values})) == len(values)


@pytest.mark.parametrize(
    ("intervened", "named"),
    [
        ("what", "what"),
        ("z", "'z'"),
        ({"x": "y"}, "'y'"),
        ({"w": "done"}, "'w'"),
        (np.zeros((2, 2), bool), "(2, 2)"),
        (np.zeros((2, 3)), "(2, 3)"),
    ],
)
def test_invalid_interventions_are_refused(intervened, named):
    table = {"x": [1.0, 2.0], "y": [2.0, 3.0], "z": ["x", "q"], "done": [True, False]}
    variables = ["x", "y"] if isinstance(intervened, str | dict) else ["x", "y", "done"]
    with refuses(ValueError, named):
        Samples.from_frame(table, intervened=intervened, variables=variables)


def test_interventions_can_be_stated_in_three_ways():
    table = {"x": [1.0, 2.0], "y": [2.0, 3.0], "do": ["x; y", "obs"], "d": [1, 0]}
    by_name = Samples.from_frame(table, intervened="do", variables=["x", "y"])
    by_flag = Samples.from_frame(
        {**table, "e": ["True", "false"]},
        intervened={"x": "d", "y": "e"},
        variables=["x", "y"],
    )
    by_array = Samples.from_frame(
        table, intervened=np.array([[True] * 2, [False] * 2]), variables=["x", "y"]
    )
    for samples in (by_name, by_flag, by_array):
        assert samples.intervened.tolist() == [[True, True], [False, False]]


def test_a_csv_file(tmp_path):
    path = tmp_path / "lab.csv"
    path.write_bytes(
        b'\xef\xbb\xbfa b,y,changed\r\n1,0.5,\r\n2,NA,y\r\n"3",0.25,none\r\n\r\n'
    )
    same(Samples.from_csv(path, intervened="changed"))
    (tmp_path / "semicolon.csv").write_text("x;y\n1;2\n")
    assert len(Samples.from_csv(tmp_path / "semicolon.csv", delimiter=";")) == 1


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"", "lab.csv"),
        (b"x,y\n1,2\n1\n", "lab.csv"),
        (b"x,x\n1,2\n", "lab.csv"),
        (b"x,\n1,2\n", "lab.csv"),
        (b"x\n\x81\n", "lab.csv"),
        (b'x\n"1\n', "lab.csv"),
        (b"x\none\n", "lab.csv"),
    ],
)
def test_a_damaged_csv_file_is_refused_with_its_line(tmp_path, content, named):
    (tmp_path / "lab.csv").write_bytes(content)
    with refuses(ValueError, named):
        Samples.from_csv(tmp_path / "lab.csv")
    with pytest.raises(FileNotFoundError):
        Samples.from_csv(tmp_path / "none.csv")


def test_tables_are_joined_cut_and_reordered():
    scm = causal.SCM.linear({"x": {}, "y": {"x": 1.0}})
    seen = causal.sample(scm, 3, seed=0)
    done = causal.sample(scm, 2, seed=1, intervention=causal.intervene(x=1.0))
    both = seen.concat(done.select(["y", "x"]))
    assert len(both) == 5
    assert both.intervened.sum() == 2
    np.testing.assert_array_equal(both["x"][3:], 1.0)
    np.testing.assert_array_equal(both.rows(slice(3)).values, seen.values)
    with refuses(ValueError, "select"):
        seen.concat(seen.select(["x"]))
    with refuses(ValueError, "'z'"):
        seen["z"]


def test_arrays_whose_digits_float32_would_lose_are_refused():
    values = 1e8 + np.arange(40.0)[:, None]
    for make in (
        lambda: Samples.observed(["y"], values),
        lambda: Samples(("y",), values, np.zeros((40, 1), bool)),
    ):
        with refuses(ValueError, "'y'"):
            make()
    assert Samples.observed(["y"], values - 1e8).values[3, 0] == 3


@pytest.mark.parametrize(
    "content",
    [
        "x;y\n1;2\n",
        "x\ty\r\n1\t2\r\n",
        "x|y\n1|2",
        "sep=;\r\nx;y\r\n1;2\r\n",
        "\n;;\nx;y;\n1;2;\n",
        '"x";y\n"1";"2"\n',
        "x,y,,\n1,2,,\n",
        ",x,y\n0,1,2\n",
        '"",x,y\n"sample 3",1,2\n',
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_tables_of_any_spreadsheet_are_read(tmp_path, content, encoding):
    path = tmp_path / "lab.csv"
    path.write_bytes(content.encode(encoding))
    found = Samples.from_csv(path)
    assert found.variables == ("x", "y")
    assert found.values.tolist() == [[1, 2]]


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"PK\x03\x04" + bytes(range(256)), "Excel"),
        (b"PAR1" + bytes(range(256)), "Parquet"),
        (b"\x1f\x8b" + bytes(range(256)), "gzip"),
        (b"dose;pain\n1,500;2\n", "'1500'"),
        (b"dose,pain\n1.5 +/- 0.1,2\n", "'1.5'"),
        (b"well;pain\n1A;2\n2A;3\n", "'1A'"),
        (b"dose;pain\n5 mg;2\n6 g;3\n", "'5'"),
        (b"date,pain\n2020-01-01,2\n2020-01-02,2\n", "dates"),
    ],
)
def test_other_files_are_refused_with_what_they_are(tmp_path, content, named):
    (tmp_path / "lab.csv").write_bytes(content)
    with refuses(ValueError, "lab.csv", named):
        Samples.from_csv(tmp_path / "lab.csv")


@pytest.mark.parametrize(
    ("content", "values", "named"),
    [
        ("x;y\n1,25;2\n1,500;3\n", [[1.25, 2], [1.5, 3]], "x"),
        ("x;y\n1.234,5;2\n6;3\n", [[1234.5, 2], [6, 3]], "decimal"),
        ('x,y\n"1,234.5",2\n"1,500",3\n', [[1234.5, 2], [1500, 3]], "thousands"),
        ("x,y\n1 234,2\n56,3\n", [[1234, 2], [56, 3]], "thousands"),
        ("x,y\n5%,$2\n6.5%,$3.10\n", [[5, 2], [6.5, 3.1]], "'%'"),
        ("x,y\n5 mg,2 °C\n-6 mg,NA\n", [[5, 2], [-6, np.nan]], "'°C'"),
        ("x,y\nmg,°C\n5,2\n6,3\n", [[5, 2], [6, 3]], "mg"),
        ("# 1 of 2\n# a lab\nx,y\n5,?\n6,3\n", [[5, np.nan], [6, 3]], ""),
        (
            "x,y\n5,-999\n6,-999\n7,2\n8,3\n",
            [[5, np.nan], [6, np.nan], [7, 2], [8, 3]],
            "-999",
        ),
        ("x,y\n5,99\n6,99\n7,2\n8,3\n", [[5, 99], [6, 99], [7, 2], [8, 3]], ""),
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8", "cp1252"])
def test_how_a_column_writes_its_numbers_is_understood_and_said(
    tmp_path, content, values, named, encoding
):
    path = tmp_path / "lab.csv"
    path.write_bytes(content.encode(encoding))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = Samples.from_csv(path)
    assert found.variables == ("x", "y")
    np.testing.assert_array_equal(found.values, np.float32(values))
    assert named in " ".join(str(w.message) for w in said)
    assert bool(said) == bool(named)


def test_a_delimiter_that_the_file_does_not_have_is_refused(tmp_path):
    path = tmp_path / "lab.csv"
    path.write_text("x,y\n1,2\n")
    with refuses(ValueError, "','", "';'"):
        Samples.from_csv(path, delimiter=";")
    path.write_text('"x;y",z\n1,2\n')
    assert Samples.from_csv(path).variables == ("x;y", "z")


def test_masked_values_are_missing():
    x = np.ma.masked_greater(np.array([1.0, 2.0, 99.0]), 10)
    assert np.isnan(Samples.from_frame({"x": x})["x"]).tolist() == [False, False, True]
