Feature: Atomicity. A request, each command of a batch, a transaction: entirely or not at all

  Scenario: Nobody sees half of a transaction
    Given the runtime
    When 4 threads replace a pair 50 times each, in transactions, while others read it
    Then nobody ever saw half a pair

  Scenario: A transaction that is refused half-way leaves nothing
    Given the runtime
    When a transaction stores a fragment and promotes one that does not exist
    Then it is refused with TransactionAborted, which says which command and why
    And nothing changed, not even the revision

  Scenario: In a batch each command stands for itself
    Given the runtime
    When a batch stores a fragment and promotes one that does not exist
    Then the fragment is stored and the other command got NotFound
