"""How a file is cut into its items."""

from engine.cuda.items import items_of


def test_a_table_between_two_macros_is_one_variable() -> None:
    text = """#define TABLE(type, name, size) static const __device__ type name[size] = {
#define END() };
TABLE(int8_t, first, 2)
  -1, 2,
END()
TABLE(unsigned, second, 3)
  1, 2, 3
END()
__device__ int f(int i) { return second[i]; }
"""
    found = [(i.kind, i.defines, i.line) for i in items_of(text) if i.kind != "directive"]
    assert found == [
        ("variable", ("first",), 3),
        ("variable", ("second",), 6),
        ("function", ("f",), 9),
    ]


def test_each_arm_of_a_condition_that_begins_an_item_may_open_its_braces() -> None:
    text = """#ifdef __cplusplus
extern "C" {
#endif
#ifdef __cplusplus
typedef enum : int {
#else
typedef enum {
#endif
  ONE = 1,
} Kind;
int declared(int i);
#ifdef __cplusplus
}
#endif
"""
    found = [(i.kind, i.defines) for i in items_of(text) if i.kind != "directive"]
    assert found == [("open", ()), ("typedef", ("Kind", "ONE")), ("function", ("declared",)), ("close", ())]


def test_a_braced_initialiser_behind_a_label_is_no_body() -> None:
    """The constructor was cut in two there, and the slice of a kernel that takes such a struct did not compile."""
    inside = "public: S() : a{}, b{1} { }\nint a; int b;\nprivate: void f() {}\nint c;"
    found = items_of(inside)
    assert [i.kind for i in found].count("function") == 2
    assert len(found) == 5
    assert inside[found[0].span.start : found[0].span.end].endswith("b{1} { }")
