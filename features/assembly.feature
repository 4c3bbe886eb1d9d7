Feature: Assembly. The best context for a question, within its budget, and the reason for all of it

  Background:
    Given a runtime with 2 workers and 30 fragments

  Scenario Outline: An answer is never larger than its budget
    When context is assembled for "words of number 7" in <budget> tokens
    Then the answer is at most <budget> tokens, as they are counted

    Examples:
      | budget |
      | 1      |
      | 17     |
      | 60     |
      | 4000   |

  Scenario: A strategy that fails costs the answer itself alone
    When context is assembled by "keyword" and by "raising"
    Then the answer is the same as by "keyword" alone
    And the answer says that "raising" has failed

  Scenario: A receipt says what became of every candidate, and gives the same bytes again
    When context is assembled for "words of number 7" in 60 tokens
    Then the receipt names what is in the answer as kept, and something else as cut
    And the answer replayed from its receipt has the same bytes

  Scenario: A body that is gone cannot be replayed, and is named
    Given an answer to "words of number 7"
    When the first fragment of the answer is deleted
    Then replaying the answer is refused, and names that fragment
