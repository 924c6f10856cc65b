// Exceptions, destructors, templates (instances begin on one line), lambdas.
#include <cstdio>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>
template <typename T> T largest(const std::vector<T> &all) { T best = all.at(0); for (const T &one : all) if (best < one) best = one; return best; }
template <typename T> struct Box {
	T value;
	explicit Box(T v) : value(v) {}
	~Box() { if (value == T()) std::puts("empty"); }
	T get(bool fail) const { if (fail) throw std::runtime_error("fail"); return value; }
};
static int careful(int depth)
{
	Box<int> box(depth);
	try {
		if (depth > 2)
			return box.get(true);
		return careful(depth + 1) + box.get(false);
	} catch (const std::logic_error &error) {
		return -1;
	} catch (const std::runtime_error &error) {
		return 100;
	}
}
int main()
{
	std::map<std::string, int> words;
	for (const char *word : { "one", "two", "one" }) words[word]++;
	auto twice = [](int x) { return x > 1 ? 2 * x : x; };
	int sum = careful(0) + twice(words["one"]) + largest<int>({ 3, 9, 2 });
	try { largest<double>({}); } catch (std::out_of_range &) { sum++; }
	std::printf("%d %d\n", sum, int(largest<double>({ 1.5 })));
	return 0;
}
